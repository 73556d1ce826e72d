// Looks nodes up in the data inside a report.
(() => {
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  const [input, options] = ["input", "options"].map((name) =>
    document.getElementById(`explorer-${name}`));
  const listed = data.nodes.length;
  const SUGGESTED = 20;
  const NEAREST = 3;

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
      .map((pair) => data.ids[pair[1]]);
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
      .map((number) => explorer.element("option", { value: data.ids[number] })));
  }

  function missing(id) {
    const all = listed === data.num_nodes;
    const words = all ? `There is no node ‘${id}’.`
      : `Node ‘${id}’ is not among the ${listed} of ${data.num_nodes} nodes on this page.`;
    const more = all ? []
      : [explorer.element("p", {}, "For any other node: ", ...explorer.command(id))];
    return explorer.refuse(words, nearest(id), ...more);
  }

  const show = (number) => explorer.show(data, number, (id) => place.has(id));

  input.addEventListener("input", suggest);
  input.addEventListener("focus", suggest);
  show(0);
  explorer.start((id) => {
    const number = find(id);
    return number === undefined ? missing(id) : show(number);
  }, (text) => data.ids[find(text)] ?? text);
})();
