// The node explorer: shows a node of the address, of a report's own data or from a service.
// Text from the data only ever becomes text: no markup is made from strings.
"use strict";
const explorer = (() => {
  const [input, status, result] = ["input", "status", "result"].map((name) =>
    document.getElementById(`explorer-${name}`));
  let data = null; // the content that the shown node is of
  let canOpen = () => true; // whether the id of another node is a link
  const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const COLORS = ["#0072b2", "#b34700", "#00795a", "#a3457f", "#7a5c00", "#4b4bb3", "#a11d1d"];
  const SHAPES = ["circle", "square", "diamond", "triangle", "hexagon"];
  const NAMED = 8; // ids in a sentence
  const LONGEST = 40; // letters of an id inside a table or a sentence
  const MOST_CLASSES = 12;
  const LABELLED = 18; // with more neighbours their ids would cover each other

  // Elements.

  function filled(made, attributes, content) {
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...content);
    return made;
  }
  const element = (name, attributes = {}, ...content) =>
    filled(document.createElement(name), attributes, content);
  const drawn = (name, attributes = {}, ...content) =>
    filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, content);

  function table(caption, head, rows, kind = "") {
    const titles = head.map((title) => element("th", { scope: "col" }, title));
    const lines = rows.map(([first, ...rest]) => element("tr", {},
      element("th", { scope: "row" }, ...[first].flat()),
      ...rest.map((cell) => element("td", {}, ...[cell].flat()))));
    const whole = element("table", { class: kind }, element("caption", {}, caption),
      element("thead", {}, element("tr", {}, ...titles)), element("tbody", {}, ...lines));
    return element("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption },
      whole);
  }

  // Words and numbers.

  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const quoted = (name) => `‘${name}’`;
  const short = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);
  const address = (id) => `#node=${encodeURIComponent(id)}`;

  function signed(value, digits) {
    const text = Math.abs(value).toFixed(digits);
    return Number(text) === 0 ? text : `${value < 0 ? "−" : "+"}${text}`;
  }

  const amount = (value, digits = 4) =>
    Number(value).toLocaleString("en", { maximumSignificantDigits: digits });

  function effect(value, digits = 2) { // of a regression in the unit of its target
    if (!isRegression()) return signed(value, digits);
    return `${value < 0 ? "−" : value > 0 ? "+" : ""}${amount(Math.abs(value), 3)}`;
  }

  const outcome = () => (isRegression() ? "predicted value" : "log-odds");

  function command(id) {
    const plain = /^[\w.:@%+=/-]+$/.test(id);
    const name = plain ? id : `'${id.replaceAll("'", "'\"'\"'")}'`;
    return [element("code", {}, `hpgmn explain RUN --node ${name}`),
      ", where RUN is the folder of this page."];
  }

  const isRegression = () => !data.classes.length; // nodes then count as texts of numbers

  function mark(label) {
    if (isRegression()) return "";
    if (label < 0) return "?";
    const first = Math.floor(label / LETTERS.length);
    return (first ? LETTERS[(first - 1) % LETTERS.length] : "") + LETTERS[label % LETTERS.length];
  }

  function classWord(label) {
    if (isRegression()) return label === null ? "unknown" : amount(label);
    return label < 0 ? "no known class" : `${mark(label)}: ${data.classes[label]}`;
  }

  function idLink(id, longest = LONGEST) {
    const about = canOpen(id) ? { href: address(id), title: id } : { title: id };
    return element(canOpen(id) ? "a" : "span", about, short(id, longest));
  }

  function linked(ids) {
    const shown = ids.slice(0, NAMED).flatMap((id) => [", ", idLink(id)]).slice(1);
    return ids.length > NAMED ? [...shown, ` and ${ids.length - NAMED} more`] : shown;
  }

  const idsOf = (places) => places.map((number) => data.ids[number]);

  // The text about a node.

  const answerOf = (node) => node.ensemble || [node.prediction, node.probabilities[node.prediction]];

  function decisionWords(node) {
    if (isRegression()) return `Predicted value: ${node.value}.`;
    const [label, chance] = answerOf(node);
    return `Predicted class: ${quoted(data.classes[label])}, probability ${percent(chance)}.`;
  }

  function roleWords(node) {
    const right = node.label === answerOf(node)[0];
    const label = node.label === null ? "" : quoted(data.classes[node.label] ?? node.label);
    if (node.role === "train") return `Train node, label ${label}.`;
    const kind = { val: "Validation node", test: "Test node" }[node.role];
    if (!label) return kind ? `${kind}, label unknown.` : "Label unknown.";
    if (isRegression()) return `${kind || "Node outside the split"}, label ${label}.`;
    const outcome = right ? "correct" : "wrong";
    return `${kind || "Node outside the split"}, label ${label}: ${outcome} prediction.`;
  }

  function bar(value, largest, kind) {
    const room = kind === "signed" ? 50 : 100; // to both sides of the middle, or from the left
    const width = largest > 0 ? (room * Math.abs(value)) / largest : 0;
    const part = element("span", { class: value < 0 ? "against" : "for" });
    part.style.width = `${width.toFixed(1)}%`;
    if (kind === "signed") part.style.marginLeft = `${(value < 0 ? 50 - width : 50).toFixed(1)}%`;
    return element("span", { class: `bar ${kind}`, "aria-hidden": "true" }, part);
  }

  function probabilities(node) {
    const ranked = node.probabilities.map((share, label) => [share, label])
      .sort((a, b) => b[0] - a[0]);
    const rows = ranked.slice(0, MOST_CLASSES).map(([share, label]) =>
      [classWord(label), bar(share, 1, "whole"), percent(share)]);
    const some = rows.length < ranked.length ? `, the first ${rows.length} of ${ranked.length}` : "";
    const whose = node.ensemble ? ", of the member alone" : "";
    return table(`Probability of each class${whose}${some}`, ["Class", "", "Probability"], rows, "bars");
  }

  function contributions(caption, head, values) {
    const least = isRegression() ? 0 : 0.05;
    const largest = Math.max(least, ...values.map(([, value]) => Math.abs(value)));
    const rows = values.map(([words, value, error]) => [words, bar(value, largest, "signed"),
      effect(value) + (error ? ` ± ${effect(error).replace("+", "")}` : "")]);
    return table(caption, [head, "", "Share"], rows, "bars");
  }

  function shares(node) {
    const values = node.shares.map((share, number) => [data.statistics[number], share])
      .sort((a, b) => b[1] - a[1])
      .map(([[name, words], share]) => [[words, element("span", { class: "rest" }, name)], share]);
    const start = isRegression() ? amount(node.baseline) : percent(Math.exp(node.baseline));
    const unit = node.baseline === undefined ? outcome()
      : `${isRegression() ? outcome() : "log-probability"} (mean train node: ${start})`;
    return contributions(`Contribution of each statistic to the ${unit}`, "Statistic", values);
  }

  function largestOf(all) {
    return all.map((share, label) => [share, label]).sort((a, b) => b[0] - a[0]).slice(0, 2)
      .filter(([share]) => share >= 0.01)
      .map(([share, label]) => `${quoted(data.classes[label])} ${(100 * share).toFixed(0)} %`)
      .join(", ");
  }

  function patternWords(pattern) {
    const whose = { out: "out-neighbours", in: "in-neighbours", undirected: "neighbours" };
    const near = Object.entries(pattern.neighborhood)
      .filter(([, all]) => all.some((share) => share > 0))
      .map(([mode, all]) => `; their ${whose[mode]} ${largestOf(all)}`);
    return [`nodes of class ${largestOf(pattern.classes)}${near.join("")}; for example `,
      ...linked(pattern.typical_nodes)];
  }

  function patterns(node) {
    const rows = node.patterns.map(([number, attention]) =>
      [`${number}`, percent(attention), patternWords(data.patterns[number])]);
    return table("Memory patterns with the most attention", ["Pattern", "Attention", "Stands for"],
      rows, "patterns");
  }

  const edgeWords = (bits) => (data.directed
    ? ["linked", "out", "in", "out and in"][bits] : "linked");

  function neighborTable(node) {
    const rows = node.neighbors.map((other, number) => {
      const taken = data.counts_as[other];
      const guess = isRegression() ? ", predicted" : ", pseudo-label";
      const how = taken === null || taken < 0 ? "" : data.is_known[other] ? ", label" : guess;
      const cells = [idLink(data.ids[other]), classWord(taken) + how, edgeWords(node.edges[number])];
      const points = isRegression() ? 1 : 100;
      return node.support ? [...cells, effect(points * node.support[number])] : cells;
    });
    const unit = isRegression() ? "predicted value" : "probability in percentage points";
    const adds = node.support ? `, with their effect on the ${unit}` : "";
    const head = ["Neighbour", "Counts as", "Edge",
      ...(node.support ? [isRegression() ? "Effect" : "Points"] : [])];
    return table(`Neighbours, ${rows.length} of ${node.degree}${adds}`, head, rows, "neighbors");
  }

  function withoutWords(changed) {
    const then = isRegression() ? amount(changed.prediction)
      : `${quoted(data.classes[changed.prediction])} (${percent(changed.probability)})`;
    return element("p", {}, "Without ", ...linked(idsOf(changed.neighbors)), `: ${then}.`);
  }

  function withoutThem(node) {
    const said = [];
    if (node.turning) said.push(withoutWords(node.turning));
    if (node.without && String(node.without.neighbors) !== String(node.turning?.neighbors)) {
      said.push(withoutWords(node.without));
    }
    if (node.without && !node.turning && !isRegression()) {
      said.push(element("p", {}, "Removing the supporting neighbours one after the other does not "
        + "change the class."));
    }
    return said;
  }

  // The drawing.

  const away = (x, y, far, angle) =>
    [x + far * Math.cos(angle), y + far * Math.sin(angle)].map((value) => value.toFixed(1));

  function shapePoints(shape, x, y, size) {
    const [count, turn, scale] = { square: [4, Math.PI / 4, 1.2], diamond: [4, 0, 1.25],
      triangle: [3, -Math.PI / 2, 1.35], hexagon: [6, 0, 1.1] }[shape];
    const angles = Array.from({ length: count }, (_, corner) => turn + (2 * Math.PI * corner) / count);
    return angles.map((angle) => away(x, y, scale * size, angle).join()).join(" ");
  }

  function nodeShape(label, x, y, size) {
    const isPlain = isRegression() || label < 0;
    const color = isPlain ? "#6e7781" : COLORS[label % COLORS.length];
    const shape = isPlain ? "circle" : SHAPES[label % SHAPES.length];
    const outline = shape === "circle" ? drawn("circle", { cx: x, cy: y, r: size, fill: color })
      : drawn("polygon", { points: shapePoints(shape, x, y, size), fill: color });
    const low = shape === "triangle" ? 0.48 : 0.36;
    return [outline, drawn("text", { x, y: y + low * size, "text-anchor": "middle", fill: "#ffffff",
      "font-size": size, "font-weight": 700 }, mark(label))];
  }

  function arrow(fromX, fromY, toX, toY, gap) {
    const angle = Math.atan2(toY - fromY, toX - fromX);
    const tip = away(toX, toY, -gap, angle);
    const corners = [0.42, -0.42].map((side) => away(...tip.map(Number), -11, angle + side));
    return drawn("polygon", { points: [tip, ...corners].join(" "), class: "arrow" });
  }

  function spoke(node, number, x, y, largest) {
    const support = node.support ? node.support[number] : 0;
    const width = node.support ? 1 + (6 * Math.abs(support)) / largest : 1.5;
    const line = drawn("line", { x1: 0, y1: 0, x2: x, y2: y, "stroke-width": width.toFixed(1),
      class: support < 0 ? "edge opposing" : "edge" });
    const heads = [];
    if (data.directed && node.edges[number] & 1) heads.push(arrow(0, 0, x, y, 17));
    const gap = node.edges.length > 24 ? 62 : 25; // so that many arrows do not cover each other
    if (data.directed && node.edges[number] & 2) heads.push(arrow(x, y, 0, 0, gap));
    return [line, ...heads];
  }

  function neighborMark(other, x, y, angle, withName) {
    const id = data.ids[other];
    const parts = nodeShape(data.counts_as[other], x, y, 12);
    if (withName) {
      const side = Math.cos(angle) > 0.3 ? "start" : Math.cos(angle) < -0.3 ? "end" : "middle";
      parts.push(drawn("text", { x: x + 20 * Math.cos(angle), y: y + 24 * Math.sin(angle) + 4,
        "text-anchor": side, "font-size": 12, class: "name" }, short(id, 14)));
    }
    const title = drawn("title", {}, `${id}, ${classWord(data.counts_as[other])}`);
    const group = drawn("g", { class: canOpen(id) ? "neighbor open" : "neighbor" }, title, ...parts);
    if (canOpen(id)) group.addEventListener("click", () => { location.hash = address(id); });
    return group;
  }

  function drawing(id, node) {
    const count = node.neighbors.length;
    const withNames = count <= LABELLED;
    const radius = count > 24 ? 185 : 130;
    const least = isRegression() ? 1e-12 : 0.01; // from one point on
    const largest = Math.max(least, ...(node.support || []).map(Math.abs));
    const spokes = [];
    const marks = [];
    node.neighbors.forEach((other, number) => {
      const angle = (2 * Math.PI * number) / count - Math.PI / 2;
      const [x, y] = [radius * Math.cos(angle), radius * Math.sin(angle)];
      spokes.push(...spoke(node, number, x, y, largest));
      marks.push(neighborMark(other, x, y, angle, withNames));
    });
    const [wide, high] = [radius + (withNames ? 120 : 30), radius + 45];
    return drawn("svg", { role: "img", viewBox: `${-wide} ${-high} ${2 * wide} ${2 * high}`,
      "aria-label": `Neighbourhood of ${id} as a drawing; the table of neighbours says the same.` },
    ...spokes, ...marks, ...nodeShape(node.prediction, 0, 0, 19));
  }

  function legend(node) {
    if (isRegression()) return "";
    const shown = new Set([node.prediction, ...node.neighbors.map((other) => data.counts_as[other])]);
    const items = [...shown].sort((a, b) => a - b).map((label) => element("li", {},
      drawn("svg", { viewBox: "-17 -17 34 34", width: 22, height: 22, "aria-hidden": "true" },
        ...nodeShape(label, 0, 0, 12)), label < 0 ? "class unknown" : data.classes[label]));
    return element("ul", { class: "legend", "aria-label": "Classes in the drawing" }, ...items);
  }

  function neighborhood(id, node) {
    if (!node.degree) return [element("p", {}, "The node has no neighbours.")];
    const rest = node.degree - node.neighbors.length;
    const words = [node.support
      ? `Line width: effect on the ${isRegression() ? "predicted value"
        : "probability of the class"}; dashed: negative.`
      : "The effect of each neighbour is not on this page."];
    if (data.directed) words.push("Arrows show the direction of edges.");
    if (rest > 0) words.push(`${rest} more neighbours are not drawn.`);
    const figure = element("figure", { class: "panel" }, drawing(id, node), legend(node));
    return [element("div", { class: "beside" }, figure, neighborTable(node)),
      element("p", { class: "quiet" }, words.join(" "))];
  }

  // The whole answer.

  function notes(node) {
    const all = [...data.notes, ...(node.notes || [])];
    if (!all.length) return [];
    const items = element("ul", {}, ...all.map((note) => element("li", {}, note)));
    return [element("details", {}, element("summary", {}, "How to read it"), items)];
  }

  // Show a node of some content; return a sentence about it.
  function show(content, number, isListed = () => true) {
    [data, canOpen] = [content, isListed];
    const [id, node] = [data.ids[number], data.nodes[number]];
    const said = `${decisionWords(node)} ${roleWords(node)}`;
    const parts = [
      element("h3", { id: "explorer-node", tabindex: "-1" }, `Node ${id}`),
      element("p", {}, element("strong", {}, decisionWords(node)), ` ${roleWords(node)}`),
      ...(data.member ? [element("p", { class: "quiet" },
        `Explained by the member ${quoted(data.member)} of the ensemble alone`
        + `${isRegression() ? `, which predicts ${amount(node.prediction)}` : ""}.`)] : []),
      element("div", { class: "why" }, ...(isRegression() ? [] : [probabilities(node)]),
        ...(node.shares ? [shares(node)] : []),
        ...((node.columns || []).length ? [contributions("Contribution of its own columns to the "
          + `${outcome()}, the largest`, "Column", node.columns)] : [])),
      ...((node.patterns || []).length ? [patterns(node)] : []),
      element("h4", {}, "Neighbourhood"), ...neighborhood(id, node), ...withoutThem(node),
    ];
    if (node.degree && !node.support) {
      parts.push(element("p", {}, "Effects of neighbours: ", ...command(id)));
    }
    result.replaceChildren(...parts, ...notes(node));
    return `Node ${id}. ${said}`;
  }

  // Say that a node cannot be shown, with links to others; return the sentence.
  function refuse(words, ids = [], ...more) {
    const near = ids.length ? [" Nearest ids: ", ...linked(ids), "."] : [];
    result.replaceChildren(element("p", { class: "missing" }, words, ...near), ...more);
    return ids.length ? `${words} Nearest ids: ${ids.join(", ")}.` : words;
  }

  // The address.

  function asked() {
    if (!location.hash.startsWith("#node=")) return null;
    try {
      return decodeURIComponent(location.hash.slice("#node=".length));
    } catch {
      return location.hash.slice("#node=".length); // not what this page writes
    }
  }

  // Follow the address: `answer` shows the node of an id and returns, or promises, a sentence
  // about it, null if another node was asked for meanwhile; `resolve` returns the id that a typed
  // text stands for. Returns a function that follows the present address.
  function start(answer, resolve) {
    async function reply(id) {
      if (input.value.trim().toLowerCase() !== id.trim().toLowerCase()) input.value = id;
      const said = await answer(id);
      if (said !== null) status.textContent = said;
      return said !== null;
    }

    async function follow(moveFocus) {
      const id = asked();
      if (id === null || !(await reply(id))) return;
      document.getElementById("explorer").scrollIntoView();
      if (moveFocus) document.getElementById("explorer-node")?.focus();
    }

    document.getElementById("explorer-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (!input.value.trim()) return;
      const wanted = address(resolve(input.value));
      if (location.hash === wanted) reply(input.value);
      else location.hash = wanted; // so that back and forward go through the nodes
    });
    window.addEventListener("hashchange", () =>
      follow(!document.activeElement?.closest("#explorer-form"))); // who types goes on typing
    document.getElementById("explorer-tool").hidden = false;
    follow(false);
    return follow;
  }

  return { amount, asked, bar, command, element, idLink, percent, refuse, show, start, table };
})();
