// The node explorer of a report: looks a node up in the page's own data and shows what is known.
// Text from the data only ever becomes text: no markup is made from strings.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  const [input, options, status, result] = ["input", "options", "status", "result"].map((name) =>
    document.getElementById(`explorer-${name}`));
  const listed = data.nodes.length;
  const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const COLORS = ["#0072b2", "#b34700", "#00795a", "#a3457f", "#7a5c00", "#4b4bb3", "#a11d1d"];
  const SHAPES = ["circle", "square", "diamond", "triangle", "hexagon"];
  const FOLDER = ", where RUN is the folder of this page.";
  const SUGGESTED = 20;
  const NEAREST = 3;
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

  function command(id) {
    const plain = /^[\w.:@%+=/-]+$/.test(id);
    return element("code", {},
      `hpgmn explain RUN --node ${plain ? id : `'${id.replaceAll("'", "'\"'\"'")}'`}`);
  }

  function mark(label) {
    if (label < 0) return "?";
    const first = Math.floor(label / LETTERS.length);
    return (first ? LETTERS[(first - 1) % LETTERS.length] : "") + LETTERS[label % LETTERS.length];
  }

  function classWord(label) {
    return label < 0 ? "no known class" : `${mark(label)}: ${data.classes[label]}`;
  }

  function idLink(id) {
    const about = place.has(id) ? { href: address(id), title: id } : { title: id };
    return element(place.has(id) ? "a" : "span", about, short(id, LONGEST));
  }

  function linked(ids) {
    const shown = ids.slice(0, NAMED).flatMap((id) => [", ", idLink(id)]).slice(1);
    return ids.length > NAMED ? [...shown, ` and ${ids.length - NAMED} more`] : shown;
  }

  const idsOf = (places) => places.map((number) => data.ids[number]);

  // Looking up.

  const place = new Map(); // of the listed nodes, by id
  const folded = new Map(); // the same without capitals
  for (let number = listed - 1; number >= 0; number -= 1) {
    place.set(data.ids[number], number);
    folded.set(data.ids[number].trim().toLowerCase(), number);
  }

  function find(id) {
    return place.get(id) ?? place.get(id.trim()) ?? folded.get(id.trim().toLowerCase());
  }

  function distance(one, other) {
    let before = Array.from({ length: other.length + 1 }, (_, column) => column);
    for (let row = 1; row <= one.length; row += 1) {
      const now = [row];
      for (let column = 1; column <= other.length; column += 1) {
        const changed = before[column - 1] + (one[row - 1] === other[column - 1] ? 0 : 1);
        now.push(Math.min(changed, before[column] + 1, now[column - 1] + 1));
      }
      before = now;
    }
    return before[other.length];
  }

  function nearest(id) {
    const wanted = id.trim().toLowerCase().slice(0, 60);
    return data.ids.slice(0, listed)
      .map((other, number) => [distance(wanted, other.toLowerCase().slice(0, 60)), number])
      .sort((a, b) => a[0] - b[0] || a[1] - b[1])
      .slice(0, NEAREST)
      .map((pair) => pair[1]);
  }

  function suggest() {
    const wanted = input.value.trim().toLowerCase();
    const starts = [];
    const holds = [];
    for (let number = 0; number < listed && starts.length < SUGGESTED; number += 1) {
      const at = data.ids[number].toLowerCase().indexOf(wanted);
      if (at === 0) starts.push(number);
      else if (at > 0 && holds.length < SUGGESTED) holds.push(number);
    }
    options.replaceChildren(...[...starts, ...holds].slice(0, SUGGESTED)
      .map((number) => element("option", { value: data.ids[number] })));
  }

  // The text about a node.

  const answerOf = (node) => node.ensemble || [node.prediction, node.probabilities[node.prediction]];

  function roleWords(node) {
    const right = node.label === answerOf(node)[0];
    const label = node.label === null ? "" : quoted(data.classes[node.label]);
    if (node.role === "train") return `Train node, label ${label}.`;
    const kind = { val: "Validation node", test: "Test node" }[node.role];
    if (!label) return kind ? `${kind}, label unknown.` : "Label unknown.";
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
    const largest = Math.max(0.05, ...values.map(([, value]) => Math.abs(value)));
    const rows = values.map(([words, value, error]) => [words, bar(value, largest, "signed"),
      signed(value, 2) + (error ? ` ± ${error.toFixed(2)}` : "")]);
    return table(caption, [head, "", "Share"], rows, "bars");
  }

  function shares(node) {
    const values = node.shares.map((share, number) => [data.statistics[number], share])
      .sort((a, b) => b[1] - a[1])
      .map(([[name, words], share]) => [[words, element("span", { class: "rest" }, name)], share]);
    const unit = node.baseline === undefined ? "log-odds"
      : `log-probability (mean train node: ${percent(Math.exp(node.baseline))})`;
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
      const how = taken < 0 ? "" : data.is_known[other] ? ", label" : ", pseudo-label";
      const cells = [idLink(data.ids[other]), classWord(taken) + how, edgeWords(node.edges[number])];
      return node.support ? [...cells, signed(100 * node.support[number], 2)] : cells;
    });
    const adds = node.support ? ", with their effect on the probability in percentage points" : "";
    const head = ["Neighbour", "Counts as", "Edge", ...(node.support ? ["Points"] : [])];
    return table(`Neighbours, ${rows.length} of ${node.degree}${adds}`, head, rows, "neighbors");
  }

  function withoutWords(changed) {
    const then = `${quoted(data.classes[changed.prediction])} (${percent(changed.probability)})`;
    return element("p", {}, "Without ", ...linked(idsOf(changed.neighbors)), `: ${then}.`);
  }

  function withoutThem(node) {
    const said = [];
    if (node.turning) said.push(withoutWords(node.turning));
    if (node.without && String(node.without.neighbors) !== String(node.turning?.neighbors)) {
      said.push(withoutWords(node.without));
    }
    if (node.without && !node.turning) {
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
    const color = label < 0 ? "#6e7781" : COLORS[label % COLORS.length];
    const shape = label < 0 ? "circle" : SHAPES[label % SHAPES.length];
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
    const group = drawn("g", { class: other < listed ? "neighbor open" : "neighbor" }, title, ...parts);
    if (other < listed) group.addEventListener("click", () => { location.hash = address(id); });
    return group;
  }

  function drawing(id, node) {
    const count = node.neighbors.length;
    const withNames = count <= LABELLED;
    const radius = count > 24 ? 185 : 130;
    const largest = Math.max(0.01, ...(node.support || []).map(Math.abs)); // from one point on
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
      ? "Line width: effect on the probability of the class; dashed: negative."
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

  function show(number) {
    const [id, node] = [data.ids[number], data.nodes[number]];
    const [label, chance] = answerOf(node);
    const decision = `Predicted class: ${quoted(data.classes[label])}, probability ${percent(chance)}.`;
    const parts = [
      element("h3", { id: "explorer-node", tabindex: "-1" }, `Node ${id}`),
      element("p", {}, element("strong", {}, decision), ` ${roleWords(node)}`),
      element("div", { class: "why" }, probabilities(node), ...(node.shares ? [shares(node)] : []),
        ...((node.columns || []).length ? [contributions("Contribution of its own columns to the "
          + "log-odds, the largest", "Column", node.columns)] : [])),
      ...(node.patterns ? [patterns(node)] : []),
      element("h4", {}, "Neighbourhood"), ...neighborhood(id, node), ...withoutThem(node),
    ];
    if (node.degree && !node.support) {
      parts.push(element("p", {}, "Effects of neighbours: ",
        command(id), FOLDER));
    }
    result.replaceChildren(...parts, ...notes(node));
    return `Node ${id}. ${decision} ${roleWords(node)}`;
  }

  function missing(id) {
    const all = listed === data.num_nodes;
    const words = all ? `There is no node ${quoted(id)}.`
      : `Node ${quoted(id)} is not among the ${listed} of ${data.num_nodes} nodes on this page.`;
    const near = idsOf(nearest(id));
    const parts = [element("p", { class: "missing" }, `${words} Nearest ids: `, ...linked(near), ".")];
    if (!all) parts.push(element("p", {}, "For any other node: ", command(id), FOLDER));
    result.replaceChildren(...parts);
    return `${words} Nearest ids: ${near.join(", ")}.`;
  }

  function asked() {
    if (!location.hash.startsWith("#node=")) return null;
    try {
      return decodeURIComponent(location.hash.slice("#node=".length));
    } catch {
      return location.hash.slice("#node=".length); // not what this page writes
    }
  }

  function answer(id) {
    const number = find(id);
    if (input.value.trim().toLowerCase() !== id.trim().toLowerCase()) input.value = id;
    status.textContent = number === undefined ? missing(id) : show(number);
  }

  function follow(moveFocus) {
    const id = asked();
    if (id === null) return;
    answer(id);
    document.getElementById("explorer").scrollIntoView();
    if (moveFocus) document.getElementById("explorer-node")?.focus();
  }

  document.getElementById("explorer-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!input.value.trim()) return;
    const found = find(input.value);
    const wanted = address(found === undefined ? input.value : data.ids[found]);
    if (location.hash === wanted) answer(input.value);
    else location.hash = wanted; // so that back and forward go through the nodes
  });
  input.addEventListener("input", suggest);
  input.addEventListener("focus", suggest);
  window.addEventListener("hashchange", () =>
    follow(!document.activeElement?.closest("#explorer-form"))); // who types goes on typing
  document.getElementById("explorer-tool").hidden = false;
  if (asked() === null) show(0);
  else follow(false);
})();
