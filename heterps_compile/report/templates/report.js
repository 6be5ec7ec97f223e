"use strict";
// Chooses a layer by mouse or keyboard and tells of it in the panel. Everything shown is put in as text, never as HTML.
(() => {
  const facts = JSON.parse(document.getElementById("facts").textContent);
  // The picture is there twice, for wide and for narrow pages; what is shown of it counts.
  const groups = Array.from(document.querySelectorAll("#layers g.layers"));
  const panel = document.getElementById("panel");
  const shown = () => groups.find((group) => group.getClientRects().length) || groups[0];
  const layersOf = (group) => Array.from(group.children);
  const NAMED = document.querySelector("#layers .layer text") !== null;
  const found = document.getElementById("found");
  const find = document.getElementById("find");
  const SHOWN = 30;
  let current = 0;
  let chosen = -1;

  const make = (tag, words, parent) => {
    const element = document.createElement(tag);
    if (words !== undefined) element.textContent = words;
    if (parent) parent.append(element);
    return element;
  };

  const focus = (index) => {
    if (index < 0 || index >= facts.layers.length) return;
    for (const group of groups) {
      group.children[current].setAttribute("tabindex", "-1");
      group.children[index].setAttribute("tabindex", "0");
    }
    current = index;
    shown().children[index].focus();
  };

  const boxOf = (layer) => (layer.tagName === "rect" ? layer : layer.firstElementChild).getBBox();

  const middle = (layer) => {
    const box = boxOf(layer);
    return [box.x + box.width / 2, box.y + box.height / 2];
  };

  // From the side of one layer to the side of another in its row; from the foot of one to the head of another elsewhere.
  const curve = (one, two) => {
    if (one.y === two.y) {
      const y = one.y + one.height / 2;
      if (two.x > one.x && two.x - one.x < 1.2 * one.width + 5) return `M${one.x + one.width} ${y}H${two.x}`;
      const [x1, x2, foot] = [one.x + one.width / 2, two.x + two.width / 2, one.y + one.height];
      return `M${x1} ${foot}C${x1} ${foot + 14} ${x2} ${foot + 14} ${x2} ${foot}`;
    }
    const [x1, y1, x2, y2] = [one.x + one.width / 2, one.y + one.height, two.x + two.width / 2, two.y];
    const bend = Math.max(14, Math.min(80, Math.abs(y2 - y1) / 2));
    return `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
  };

  // Lines that are drawn are marked; where there is no room for all of them, those of the layer are drawn.
  const showEdges = (index) => {
    const edges = facts.edges.filter(([from, to]) => from === index || to === index).slice(0, 4 * SHOWN);
    const wanted = new Set(edges.map(([from, to]) => `${from}-${to}`));
    for (const group of groups) {
      const lines = group.parentNode.querySelector("g.edges");
      lines.querySelectorAll("path.chosen-edge").forEach((line) => line.remove());
      const drawn = Array.from(lines.querySelectorAll("[data-edges]"));
      for (const line of drawn) {
        const is = line.dataset.edges.split(" ").some((edge) => wanted.has(edge));
        line.classList.toggle("chosen-edge", is);
        if (is) lines.append(line);
      }
      if (NAMED || drawn.length || !group.getClientRects().length) continue;
      for (const [from, to] of edges) {
        const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
        line.setAttribute("class", "chosen-edge");
        line.setAttribute("d", curve(boxOf(group.children[from]), boxOf(group.children[to])));
        lines.append(line);
      }
    }
  };

  const link = (index, words, parent) => {
    const button = make("button", words, parent);
    button.type = "button";
    button.addEventListener("click", () => choose(index, true));
  };

  const neighbours = (title, pairs) => {
    if (!pairs.length) return;
    make("h3", title, panel);
    const list = make("ul", undefined, panel);
    for (const [index, size, join] of pairs.slice(0, SHOWN)) {
      link(index, `${facts.layers[index].name}${join ? `, its ${join}` : ""} (${size})`, make("li", undefined, list));
    }
    if (pairs.length > SHOWN) make("li", `and ${pairs.length - SHOWN} more`, list);
  };

  const choose = (index, moves) => {
    const layer = facts.layers[index];
    for (const group of groups) {
      if (chosen >= 0) group.children[chosen].setAttribute("aria-pressed", "false");
      group.children[index].setAttribute("aria-pressed", "true");
    }
    chosen = index;
    if (moves) {
      focus(index);
      shown().children[index].scrollIntoView({ block: "nearest" });
    }
    panel.classList.add("told");
    panel.replaceChildren();
    make("h2", layer.name, panel);
    make("p", `stage ${layer.stage}, on ${layer.device}${layer.change ? `, ${layer.change}` : ""}`, panel).className = "soft";
    const list = make("dl", undefined, panel);
    for (const [key, words] of layer.facts) {
      make("dt", key, list);
      make("dd", words, list);
    }
    if (layer.types) {
      make("h3", "On every device type", panel);
      const table = make("table", undefined, panel);
      const head = make("tr", undefined, make("thead", undefined, table));
      for (const words of ["device", "compute", "data", "per million"]) make("th", words, head);
      const body = make("tbody", undefined, table);
      for (const row of layer.types) {
        const line = make("tr", undefined, body);
        if (row[0] === layer.device) line.className = "here";
        for (const words of row) make("td", words, line);
      }
      make("p", "Times of a batch, prices of a million samples, alone on one unit that is kept busy; what crosses between stages comes on top.", panel).className = "soft";
    }
    const edges = facts.edges.filter(([from, to]) => from === index || to === index);
    neighbours("Reads from", edges.filter((edge) => edge[1] === index).map((edge) => [edge[0], edge[2]]));
    neighbours("Read by", edges.filter((edge) => edge[0] === index).map((edge) => [edge[1], edge[2], edge[3]]));
    showEdges(index);
  };

  // The layer that lies in a direction from another: the nearest one whose middle is further that way.
  const beside = (index, down) => {
    const layers = layersOf(shown());
    const [x, y] = middle(layers[index]);
    let best = index;
    let least = Infinity;
    for (let i = 0; i < layers.length; i += 1) {
      const [otherX, otherY] = middle(layers[i]);
      const gap = (otherY - y) * down;
      const distance = gap + Math.abs(otherX - x) / 4;
      if (gap > 1 && distance < least) [best, least] = [i, distance];
    }
    return best;
  };

  const indexOf = (event) => {
    const layer = event.target.closest(".layer");
    return layer ? Number(layer.dataset.layer) : -1;
  };

  const onClick = (event) => {
    const index = indexOf(event);
    if (index >= 0) choose(index, true);
  };
  const onKey = (event) => {
    const index = indexOf(event);
    if (index < 0) return;
    const act = {
      ArrowRight: () => focus(index + 1),
      ArrowLeft: () => focus(index - 1),
      ArrowDown: () => focus(beside(index, 1)),
      ArrowUp: () => focus(beside(index, -1)),
      Home: () => focus(0),
      End: () => focus(facts.layers.length - 1),
      Enter: () => choose(index, true),
      " ": () => choose(index, true),
    }[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  };
  for (const group of groups) {
    group.addEventListener("click", onClick);
    group.addEventListener("keydown", onKey);
  }
  panel.querySelectorAll("[data-choose]").forEach((button) => {
    button.addEventListener("click", () => choose(Number(button.dataset.choose), true));
  });

  find.addEventListener("input", () => {
    const words = find.value.toLowerCase();
    found.replaceChildren();
    found.hidden = !words;
    if (!words) return;
    const hits = [];
    facts.layers.forEach((layer, index) => {
      if (`${layer.name} ${layer.change || ""}`.toLowerCase().includes(words)) hits.push(index);
    });
    for (const index of hits.slice(0, SHOWN)) link(index, facts.layers[index].name, make("li", undefined, found));
    if (hits.length !== 1 && (hits.length > SHOWN || !hits.length)) {
      make("li", hits.length ? `and ${hits.length - SHOWN} more` : "no layer has that in its name", found);
    }
  });
  find.addEventListener("keydown", (event) => {
    const first = found.querySelector("button");
    if (event.key === "Enter" && first) first.click();
  });
})();
