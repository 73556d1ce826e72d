// Fetches from the service what the page shows: facts, ranked nodes, matching ids, a node.
(() => {
  const { element } = explorer;
  const part = (id) => document.getElementById(id);
  const TOKEN = "hpgmn-token"; // its name in the storage of this tab
  const TYPING = 150; // milliseconds after the last letter
  const LONGEST = 24; // letters of a class or an id in the list
  const latest = { node: 0, search: 0, list: 0 }; // numbers of requests: late answers are dropped
  let shown = null; // the id of the node in view
  let isStarted = false;
  let typing = 0;

  class NeedsToken extends Error {}

  async function get(path, parameters = {}) {
    const token = sessionStorage.getItem(TOKEN);
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    let response;
    try {
      response = await fetch(`${path}?${new URLSearchParams(parameters)}`, { headers });
    } catch {
      throw new Error("The service does not answer. Check that it is running, then try again.");
    }
    if (response.status === 401) {
      sessionStorage.removeItem(TOKEN);
      throw new NeedsToken(token ? "The service refuses this token." : "The service needs a token.");
    }
    const content = await response.json().catch(() => null);
    if (response.ok && content) return content;
    throw new Error(content?.error ? `${content.error} ${content.remedy}`
      : `The service has failed (status ${response.status}).`);
  }

  function report(error) {
    part("problem").textContent = error ? error.message : "";
    part("problem").hidden = !error;
    const needsToken = error instanceof NeedsToken;
    part("token-form").hidden = !needsToken;
    if (needsToken) part("token-input").focus();
  }

  // Facts and ranked nodes.

  function showSummary(summary) {
    part("title").textContent = summary.title;
    document.title = `${summary.title} – hpgmn`;
    part("facts").style.setProperty("--columns", summary.facts.length);
    part("facts").replaceChildren(...summary.facts.map(([name, value, note]) => element("div", {},
      element("dt", {}, name),
      element("dd", {}, element("strong", {}, value), element("span", {}, note)))));
    const select = part("ranked-class");
    if (!select.options.length) {
      select.append(...summary.classes.map((name) => element("option", { value: name }, name)));
      select.value = summary.class ?? "";
    }
    select.closest("label").hidden = !summary.classes.length;
  }

  function markShown() {
    for (const link of part("ranking").querySelectorAll("a")) {
      if (link.title === shown) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }

  function showRanking(name, rows) {
    if (!rows.length) {
      part("ranking").replaceChildren(element("p", {}, "Every node has a label: none to rank. "
        + "Search for an id instead."));
      return;
    }
    const lines = rows.map((row) => {
      const link = explorer.idLink(String(row.id), LONGEST);
      link.className = "open";
      const chance = row.probabilities?.[name];
      const value = name === null ? [explorer.amount(row.prediction)]
        : [explorer.bar(chance, 1, "whole"), explorer.percent(chance)];
      return [link, ...value, ...(name === null ? [] : [row.reason ?? "–"])];
    });
    const head = name === null ? ["Node", "Predicted value"]
      : ["Node", "", "Probability", "Main reason"];
    const caption = `Unlabelled nodes by ${name === null ? "predicted value"
      : `the probability of ‘${name}’`}, highest first`;
    part("ranking").replaceChildren(explorer.table(caption, head, lines,
      name === null ? "ranking" : "ranking reasons"));
    markShown();
  }

  async function rank() {
    const request = latest.list += 1;
    const name = part("ranked-class").value || null;
    part("ranking").setAttribute("aria-busy", "true");
    try {
      const { nodes } = await get("top", name === null ? {} : { of: name });
      if (request === latest.list) showRanking(name, nodes);
      return nodes.length ? String(nodes[0].id) : undefined;
    } finally {
      part("ranking").removeAttribute("aria-busy");
    }
  }

  // One node.

  async function answer(id) {
    const request = latest.node += 1;
    const result = part("explorer-result");
    result.setAttribute("aria-busy", "true");
    hideMatches();
    let said = null;
    try {
      const content = await get("page/node", { id });
      if (request !== latest.node) return null;
      [shown] = content.ids;
      said = explorer.show(content, 0);
      report(null);
    } catch (error) {
      if (request !== latest.node) return null;
      shown = null;
      if (error instanceof NeedsToken) report(error);
      said = explorer.refuse(error.message);
    }
    result.removeAttribute("aria-busy");
    markShown();
    return said;
  }

  // Search.

  function hideMatches() {
    clearTimeout(typing);
    latest.search += 1; // an answer under way comes too late
    part("matches").replaceChildren();
  }

  async function search() {
    const wanted = part("explorer-input").value.trim();
    hideMatches();
    if (!wanted) return;
    const request = latest.search;
    try {
      const { ids, has_more: hasMore } = await get("page/search", { q: wanted });
      if (request !== latest.search) return;
      const items = ids.map((id) => element("li", {}, explorer.idLink(id)));
      const rest = hasMore ? [element("li", { class: "quiet" }, "and more")] : [];
      part("matches").replaceChildren(ids.length ? element("ul", {}, ...items, ...rest)
        : element("p", { class: "quiet" }, "No id contains this text."));
    } catch (error) {
      if (request === latest.search) report(error);
    }
  }

  // The whole page.

  async function load() {
    try {
      showSummary(await get("page/summary"));
      part("explorer-tool").hidden = false;
      report(null);
      const first = (await rank()) ?? (await get("page/search")).ids[0];
      if (!isStarted) {
        isStarted = true;
        explorer.start(answer, (text) => text.trim());
        if (explorer.asked() === null) answer(first);
      } else if ((explorer.asked() ?? shown) !== null) answer(explorer.asked() ?? shown);
    } catch (error) {
      report(error);
    }
  }

  part("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const token = part("token-input").value.trim();
    if (!/^[\x21-\x7e]+$/.test(token)) {
      report(new NeedsToken("A token has letters, digits and signs of ASCII only."));
      return;
    }
    sessionStorage.setItem(TOKEN, token);
    part("token-input").value = "";
    load();
  });
  part("ranked-form").addEventListener("submit", (event) => {
    event.preventDefault();
    load();
  });
  part("ranked-class").addEventListener("change", () => rank().catch(report));
  part("explorer-input").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(search, TYPING);
  });
  load();
})();
