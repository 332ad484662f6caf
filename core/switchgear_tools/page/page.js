"use strict";
// What the page shows is `data`, made by payload.py. Text is put in as text alone, never as markup.

const ROW = 22, PRINTED = 400;
const at = (id) => document.getElementById(id);

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function drawn(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function size(bytes) {
  for (const [unit, least] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e4]])
    if (bytes >= least) return `${(bytes / (unit === "kB" ? 1e3 : least)).toPrecision(3)} ${unit}`;
  return `${bytes.toLocaleString("en")} bytes`;
}

const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

/** A list that keeps only its visible rows in the document: `draw(item, row)` fills a row in. */
class List {
  constructor(box, draw, choose, key) {
    Object.assign(this, { box, draw, choose, key, items: [], place: -1 });
    this.space = box.appendChild(element("div", "space"));
    box.addEventListener("scroll", () => this.render());
    box.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row) this.go(Number(row.dataset.place), event);
    });
    box.addEventListener("keydown", (event) => this.pressed(event));
    new ResizeObserver(() => this.render()).observe(box);
  }
  show(items, place = -1) {
    this.items = items;
    this.place = Math.min(place, items.length - 1);
    this.space.style.height = `${items.length * ROW}px`;
    this.render();
  }
  go(place, event) {
    if (!this.items.length) return;
    this.place = Math.max(0, Math.min(place, this.items.length - 1));
    this.reveal(this.place);
    this.choose(this.items[this.place], event);
    this.render();
  }
  reveal(place, middle = false) {
    const height = this.box.clientHeight, top = place * ROW, { scrollTop } = this.box;
    if (top < scrollTop || top + ROW > scrollTop + height)
      this.box.scrollTop = middle || top < scrollTop ? top - height / 3 : top + 2 * ROW - height;
  }
  pressed(event) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -1e9, End: 1e9 };
    if (event.key in steps && !event.ctrlKey && !event.metaKey) {
      this.go(Math.max(this.place, steps[event.key] > 0 ? this.place : 0) + steps[event.key], event);
    } else if (!this.key || !this.key(event, this.items[this.place])) return;
    event.preventDefault();
  }
  render() {
    const all = printing.matches, { box, items } = this;
    const first = all ? 0 : Math.max(0, Math.floor(box.scrollTop / ROW) - 8);
    const end = Math.min(items.length, all ? PRINTED : first + Math.ceil(box.clientHeight / ROW) + 16);
    const rows = [];
    for (let place = first; place < end; place++) {
      const row = element("div", "row");
      row.style.top = `${place * ROW}px`;
      row.dataset.place = place;
      row.id = `${box.id}-${place}`;
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", place === this.place);
      this.draw(items[place], row);
      rows.push(row);
    }
    if (all && end < items.length) rows.push(element("p", "empty", `and ${items.length - end} more lines`));
    if (!items.length) rows.push(element("p", "empty", "nothing here"));
    this.space.replaceChildren(...rows);
    if (this.place >= 0) box.setAttribute("aria-activedescendant", `${box.id}-${this.place}`);
    else box.removeAttribute("aria-activedescendant");
  }
}

const printing = matchMedia("print");
const state = { graph: null, selected: null, partners: new Set(), module: null, query: "", found: [], next: 0 };
let data, colours, lists, tree, savedList, stageList;

async function unpacked() {
  const bytes = Uint8Array.from(atob(at("data").textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const text = (number) => (number === undefined ? "" : data.texts[number]);

const names = (row) => row.types.map((type) => text(type).split(":")[0]);

/** Rows know their program, their number and, in both directions, their partners. */
function prepare(graph) {
  graph.programs.forEach((program, side) => {
    program.side = side ? "backward" : "forward";
    program.rows.forEach((row, number) => Object.assign(row, { program, number, partners: [] }));
  });
  const [forward, backward] = graph.programs;
  for (const row of backward ? backward.rows : [])
    for (const link of row.links || []) {
      row.partners.push(forward.rows[link]);
      forward.rows[link].partners.push(row);
    }
  for (const program of graph.programs) {
    program.open = new Set();
    program.makers = new Map();
    for (const row of program.rows) {
      for (const name of names(row)) program.makers.set(name, row);
    }
  }
  timeline(graph);
}

/** One line of time through forward and backward; a saved value lives on from one to the other. */
function timeline(graph) {
  const [forward, backward] = graph.programs;
  graph.lines = forward.lines + (backward ? backward.lines : 0);
  const saved = new Map(graph.saved.map((one) => [one.name, one]));
  const values = forward.values.map(([name, bytes, birth, death]) => ({ name, bytes, birth, death: Math.min(death, forward.lines - 1), row: forward.makers.get(name) }));
  const byName = new Map(values.map((value) => [value.name, value]));
  for (const [name, bytes, birth, death] of backward ? backward.values : []) {
    const before = byName.get(name);
    if (birth < 0 && before) Object.assign(before, { death: death + forward.lines, isSaved: true });
    else values.push({ name, bytes, birth: birth + forward.lines, death: death + forward.lines, row: backward.makers.get(name), isSaved: birth < 0 && saved.has(name) });
  }
  for (const value of values) value.row = value.row || forward.makers.get(value.name);
  graph.values = values;
  graph.live = totals(values, graph.lines);
  addMeasured(graph);
  graph.kept = totals(values.filter((value) => value.isSaved), graph.lines);
}

/** Where the bytes allocated inside a line were measured, they take the place of those of the values that it makes. */
function addMeasured(graph) {
  const born = new Float64Array(graph.lines + 1);
  for (const { bytes, birth } of graph.values) if (birth >= 0) born[birth] += bytes;
  graph.programs.forEach((program, number) => {
    const before = number ? graph.programs[0].lines : 0;
    for (const row of program.rows) {
      if (row.inside !== undefined) graph.live[before + row.line + 1] += row.inside - born[before + row.line];
    }
  });
}

function totals(values, lines) {
  const changes = new Float64Array(lines + 3);
  for (const { bytes, birth, death } of values) {
    changes[Math.max(birth, -1) + 1] += bytes;
    changes[Math.min(death, lines) + 2 > lines + 2 ? lines + 2 : Math.min(death, lines) + 2] -= bytes;
  }
  for (let line = 1; line < changes.length; line++) changes[line] += changes[line - 1];
  return changes.subarray(0, lines + 1);
}

function colour(row, owner) {
  row.style.setProperty("--own", colours.get(owner) || "var(--e7)");
}

function drawLine(item, row) {
  const owner = text(item.owner), { classList } = row;
  colour(row, owner);
  if (item.region !== undefined) classList.add("part");
  if (item === state.selected) classList.add("selected");
  if (state.partners.has(item) || (item.parts && !item.program.open.has(item.number) && partsOf(item).some((part) => state.partners.has(part)))) classList.add("partner");
  if (state.module !== null && !inModule(item)) classList.add("dim");
  if (state.query && matches(item)) classList.add("match");
  const isOpen = item.program.open.has(item.number);
  row.append(element("span", "toggle", item.parts ? (isOpen ? "▾" : "▸") : ""));
  row.append(element("span", "main", label(item)));
  if (item.parts) row.setAttribute("aria-expanded", isOpen);
  row.append(element("span", "side", text(item.module)));
  if (item.share !== undefined) row.append(element("span", "side share", `${(100 * item.share).toFixed(1)} %`));
  if (item.region === undefined) row.append(element("span", "side owner", owner));
}

function label(item) {
  const code = short(text(item.code));
  if (item.folds) return `${counted(item.folds, "line")}, the first: ${code}`;
  return item.parts ? `${counted(item.parts, "operator")} as one: ${code}` : code;
}

const short = (code) => code.replaceAll("torch.ops.", "");
const partsOf = (item) => item.program.rows.slice(item.number + 1, item.number + 1 + (item.parts || 0));
const within = (name, module) => module === "" || name === module || name.startsWith(`${module}.`);
const inModule = (item) => [item, ...partsOf(item)].some((one) => within(text(one.module), state.module));
const matches = (item) => `${text(item.code)} ${text(item.module)} ${text(item.source)} ${text(item.owner)}`.toLowerCase().includes(state.query);

function visible(program) {
  return program.rows.filter((row) => row.region === undefined || program.open.has(row.region));
}

function refresh() {
  for (const [side, list] of Object.entries(lists)) {
    const program = state.graph && state.graph.programs.find((one) => one.side === side);
    const items = program ? visible(program) : [];
    list.show(items, items.indexOf(state.selected));
    const button = document.querySelector(`.fold[data-for=${side}]`);
    button.hidden = !program || !program.rows.some((row) => row.parts);
    if (program) button.textContent = program.open.size ? "fold all" : "unfold all";
  }
}

function select(item, reveal = false) {
  state.selected = item;
  const partners = item ? [item, ...(item.links ? [] : partsOf(item))].flatMap((one) => one.partners) : [];
  state.partners = new Set(partners);
  refresh();
  const first = (side) => partners.find((one) => one.program.side === side);
  for (const side of ["forward", "backward"]) {
    const target = item && item.program.side === side ? (reveal ? item : null) : first(side);
    if (target) show(target);
  }
  details(item);
}

/** Scroll to a row, or to its region where that is folded. */
function show(item) {
  const list = lists[item.program.side];
  let place = list.items.indexOf(item);
  if (place < 0) place = list.items.indexOf(item.program.rows[item.region]);
  list.reveal(place, true);
  list.render();
}

function unfold(item, open) {
  const region = item.region === undefined ? item : item.program.rows[item.region];
  if (!region.parts) return false;
  region.program.open[open ? "add" : "delete"](region.number);
  select(open ? item : region);
  return true;
}

function details(item) {
  const box = at("details");
  if (!item) {
    box.replaceChildren(element("p", "", "Select a line: its partners in the other program light up. Press ? for the keys."));
    return;
  }
  const list = element("dl"), entry = (name, ...content) => {
    const cell = element("dd");
    cell.append(...content);
    list.append(element("dt", "", name), cell);
  };
  entry("result", item.types.map(text).join("\n") || "none");
  entry("executor", text(item.owner) || "none");
  if (item.share !== undefined) entry("time", `${(100 * item.share).toFixed(1)} % of a call, as measured`);
  if (item.inside !== undefined) entry("memory", `${size(item.inside)} allocated inside at most, as measured`);
  if (item.parts) entry("region", `${counted(item.parts, "operator")}${item.gain ? `, ${(1e6 * item.gain).toFixed(1)} µs faster than one by one, as measured` : ""}`);
  entry("written in", `${text(item.source) || "no line of the function"}${text(item.module) ? `, module ${text(item.module)}` : ""}`);
  if (item.rule !== undefined) entry("grad rule", text(item.rule));
  const links = [...state.partners].slice(0, 24).flatMap((partner) => [button(partner), element("br")]);
  const more = state.partners.size - 24;
  if (links.length) entry(item.program.side === "backward" ? "forward" : "backward", ...links, ...(more > 0 ? [`and ${more} more`] : []));
  else if (item.unlinked !== undefined) entry("forward", text(item.unlinked));
  for (const place of item.choices || []) {
    const [kind, symbol, owner, reason, declined] = data.choices[place];
    const others = declined.map(([name, why]) => `\n${name} declined: ${why}`).join("");
    entry(kind, `${symbol} by ${owner}${reason ? `: ${reason}` : ""}${others}`);
  }
  const own = names(item);
  for (const one of state.graph.saved) if (own.includes(one.name)) entry("saved", `${one.name}: ${size(one.bytes)}; ${one.reason}`);
  box.replaceChildren(element("p", "code-line", text(item.code)), list);
  box.scrollTop = 0;
}

function button(item) {
  const made = element("button", "", short(text(item.code)));
  made.type = "button";
  made.addEventListener("click", () => { reach(item); });
  return made;
}

/** Select a row wherever it is. */
function reach(item) {
  view("program");
  if (item.region !== undefined) item.program.open.add(item.region);
  select(item, true);
  lists[item.program.side].box.focus();
}

function modules(graph) {
  const root = { name: graph.label || data.name, path: "", children: new Map(), counts: [0, 0], depth: 0 };
  graph.programs.forEach((program, side) => {
    for (const row of program.rows) {
      if (row.parts) continue;
      let node = root;
      node.counts[side] += row.folds || 1;
      for (const part of text(row.module).split(".").filter(Boolean)) {
        if (!node.children.has(part))
          node.children.set(part, { name: part, path: node.path ? `${node.path}.${part}` : part, children: new Map(), counts: [0, 0], depth: node.depth + 1 });
        node = node.children.get(part);
        node.counts[side] += row.folds || 1;
      }
    }
  });
  for (const one of [root, ...root.children.values()]) one.isOpen = true;
  return root;
}

function shownNodes(node) {
  return [node, ...(node.isOpen ? [...node.children.values()].flatMap(shownNodes) : [])];
}

function drawNode(node, row) {
  if (state.module === node.path) row.classList.add("selected");
  row.style.paddingLeft = `${6 + 12 * node.depth}px`;
  row.append(element("span", "toggle", node.children.size ? (node.isOpen ? "▾" : "▸") : ""));
  row.append(element("span", "main", node.name), element("span", "side", node.counts.join(" | ")));
}

function fold(node, open) {
  node.isOpen = open;
  tree.show(shownNodes(state.graph.root), tree.items.indexOf(node));
}

function chooseModule(node, event) {
  if (event && event.target.className === "toggle" && node.children.size) return fold(node, !node.isOpen);
  state.module = node.path && state.module !== node.path ? node.path : null;
  refresh();
  tree.render();
  for (const list of Object.values(lists)) {
    const place = state.module === null ? -1 : list.items.findIndex(inModule);
    if (place >= 0) list.reveal(place, true);
  }
}

function search(query) {
  state.query = query.trim().toLowerCase();
  state.found = state.query ? state.graph.programs.flatMap((program) => program.rows.filter(matches)) : [];
  state.next = 0;
  at("matches").textContent = state.query ? counted(state.found.length, "match").replace("matchs", "matches") : "";
  refresh();
  if (state.found.length) show(state.found[0]);
}

function nextMatch(step) {
  if (!state.found.length) return;
  const row = state.found[(state.next + state.found.length) % state.found.length];
  state.next += step;
  if (row.region !== undefined) row.program.open.add(row.region);
  view("program");
  select(row, true);
}

// Stages

function chooseStages() {
  const program = state.graph.programs[at("stage-program").selectedIndex];
  const slider = at("stage");
  slider.max = Math.max(0, program ? program.stages.length - 1 : 0);
  slider.value = slider.max;
  showStage();
}

function showStage() {
  const program = state.graph.programs[at("stage-program").selectedIndex];
  const stages = program ? program.stages : [], place = Number(at("stage").value);
  if (!stages.length) {
    at("stage-name").textContent = data.folded || "no stages";
    stageList.show([]);
    return;
  }
  const stage = stages[place], before = place ? stages[place - 1].lines : stage.lines;
  let items = changes(before, stage.lines);
  const added = items.filter((item) => item.mark === "+").length, removed = items.filter((item) => item.mark === "-").length;
  at("stage-name").textContent = `${place}. ${stage.name} (${stage.program}, ${counted(stage.operators, "operator")}): ${stage.about}. ${added} lines added, ${removed} removed.`;
  if (at("only-changes").checked) items = items.filter((item) => item.mark !== " ");
  stageList.show(items);
  const first = items.findIndex((item) => item.mark !== " ");
  stageList.box.scrollTop = Math.max(0, (first - 4) * ROW);
  stageList.render();
}

/** The lines of a stage, with those of the one before that are gone; a value has one line, so equal texts are one line. */
function changes(before, after) {
  const were = new Map(before.map((number, place) => [number, place])), are = new Set(after), items = [];
  let place = 0;
  for (const number of after) {
    if (were.has(number)) {
      const end = were.get(number);
      for (; place < end; place++) if (!are.has(before[place])) items.push({ mark: "-", number: before[place] });
      place = Math.max(place, end + 1);
    }
    items.push({ mark: were.has(number) ? " " : "+", number });
  }
  for (; place < before.length; place++) if (!are.has(before[place])) items.push({ mark: "-", number: before[place] });
  return items;
}

function drawStageLine(item, row) {
  if (item.mark === "+") row.classList.add("added");
  if (item.mark === "-") row.classList.add("removed");
  row.append(element("span", "toggle", item.mark), element("span", "main", short(text(item.number))));
}

// Memory

const plot = { width: 1000, height: 180, left: 64, bottom: 22, line: 0 };

function drawPlot() {
  const { live, kept, lines, programs } = state.graph, { height, left, bottom } = plot;
  const box = at("plot"), width = plot.width = Math.max(280, box.clientWidth), most = Math.max(1, ...sampled(live));
  const x = (line) => left + ((width - left) * line) / (lines + 1), y = (bytes) => height - bottom - ((height - bottom - 16) * bytes) / most;
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none" });
  for (const part of [0, 0.5, 1]) {
    svg.append(drawn("line", { class: "rule", x1: left, x2: width, y1: y(part * most), y2: y(part * most) }));
    svg.append(drawn("text", { x: left - 6, y: y(part * most) + 4, "text-anchor": "end" }, part ? size(Math.round(part * most)) : "0"));
  }
  for (const [name, totals] of [["all", live], ["kept", kept]]) {
    const step = Math.max(1, Math.floor(totals.length / 4000));
    let path = `M${x(0)},${y(0)}`;
    for (let line = 0; line < totals.length; line += step) {
      let value = 0;
      for (let one = line; one < Math.min(line + step, totals.length); one++) value = Math.max(value, totals[one]);
      path += `L${x(line).toFixed(1)},${y(value).toFixed(1)}L${x(Math.min(line + step, lines + 1)).toFixed(1)},${y(value).toFixed(1)}`;
    }
    svg.append(drawn("path", { class: name, d: `${path}L${x(lines + 1)},${y(0)}Z` }));
  }
  if (programs[1]) {
    const middle = x(programs[0].lines + 1);
    svg.append(drawn("line", { class: "rule", x1: middle, x2: middle, y1: 0, y2: height - bottom }));
    const isNarrow = middle > width - 80;
    svg.append(drawn("text", { x: isNarrow ? width : middle + 6, y: height - 6, "text-anchor": isNarrow ? "end" : "start" }, "backward"));
  }
  svg.append(drawn("text", { x: left, y: height - 6 }, "forward"));
  plot.cursor = drawn("line", { class: "cursor", y1: 0, y2: height - bottom });
  svg.append(plot.cursor);
  plot.x = x;
  box.replaceChildren(svg);
  moveTo(plot.line);
}

function sampled(values) {
  let most = 0;
  for (const value of values) most = Math.max(most, value);
  return [most];
}

function moveTo(line) {
  const { graph } = state;
  plot.line = Math.max(0, Math.min(line, graph.lines));
  plot.cursor.setAttribute("x1", plot.x(plot.line + 0.5));
  plot.cursor.setAttribute("x2", plot.x(plot.line + 0.5));
  const time = plot.line - 1, alive = graph.values.filter((value) => value.birth <= time && value.death >= time);
  alive.sort((one, other) => other.bytes - one.bytes);
  const [most] = sampled(graph.live), isBackward = time >= graph.programs[0].lines;
  const where = isBackward ? `backward line ${time - graph.programs[0].lines + 1}` : `forward line ${Math.max(0, time + 1)}`;
  const said = `${where}: ${size(graph.live[plot.line])} in ${counted(alive.length, "value")}, ${size(graph.kept[plot.line])} of it saved for the backward; peak ${size(most)}`;
  at("at").textContent = said;
  at("plot").setAttribute("aria-valuenow", plot.line);
  at("plot").setAttribute("aria-valuemax", graph.lines);
  at("plot").setAttribute("aria-valuetext", said);
  const rows = alive.slice(0, 6).map((value) => {
    const row = element("tr"), maker = element("td");
    if (value.row) maker.append(label(value.row));
    else maker.append("input");
    maker.title = maker.textContent;
    row.append(element("td", "", value.name), element("td", "number", size(value.bytes)), maker, element("td", "", value.row ? text(value.row.module) : ""));
    if (value.row) row.addEventListener("dblclick", () => reach(value.row));
    return row;
  });
  document.querySelector("#largest tbody").replaceChildren(...rows);
}

function drawSaved(one, row) {
  const value = state.graph.values.find((other) => other.name === one.name);
  const life = element("span", "life");
  if (value) {
    const bar = life.appendChild(element("i")), { lines } = state.graph;
    bar.style.left = `${(100 * Math.max(0, value.birth)) / lines}%`;
    bar.style.right = `${100 - (100 * Math.min(value.death, lines)) / lines}%`;
  }
  const number = element("span", "column number", one.alive ? "an input" : size(one.bytes));
  row.append(element("span", "column", one.name), number, life, element("span", "main", `${one.type}  ${one.origin}; ${one.reason}`));
}

function reachSaved(one) {
  const maker = state.graph.programs[0].makers.get(one.name);
  const value = state.graph.values.find((other) => other.name === one.name);
  if (value) moveTo(Math.max(0, value.birth + 1));
  if (maker) select(maker);
}

// Views

function view(name) {
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const isShown = tab.dataset.view === name;
    tab.setAttribute("aria-selected", isShown);
    at(tab.dataset.view).hidden = !isShown;
  }
  if (name === "memory" && state.graph) drawPlot();
}

function chooseGraph() {
  state.graph = data.graphs[at("graph").selectedIndex] || data.graphs[0];
  const programs = at("stage-program");
  Object.assign(state, { selected: null, partners: new Set(), module: null, query: "", found: [] });
  if (state.graph) {
    if (!state.graph.root) {
      prepare(state.graph);
      state.graph.root = modules(state.graph);
      state.graph.saved.sort((one, other) => one.alive - other.alive || other.bytes - one.bytes);
    }
    programs.replaceChildren(...state.graph.programs.map((program) => element("option", "", program.kind)));
    tree.show(shownNodes(state.graph.root));
    savedList.show(state.graph.saved);
    plot.line = state.graph.live.indexOf(sampled(state.graph.live)[0]);
    chooseStages();
  }
  refresh();
  details(null);
}

function pressed(event) {
  if (at("help").open) return; // the dialog closes by itself
  const isTyping = event.target.matches("input[type=search], select");
  if (event.key === "Escape") {
    at("search").value = "";
    search("");
    state.module = null;
    if (state.graph) { select(null); tree.render(); }
    if (isTyping) event.target.blur();
  } else if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  else if (event.key === "/") at("search").focus();
  else if (event.key === "?") at("help").showModal();
  else if ("1234".includes(event.key)) view(["program", "stages", "memory", "summary"][event.key - 1]);
  else return;
  event.preventDefault();
}

function connect() {
  const keys = (event, item) => {
    if (!item) return false;
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") return unfold(item, event.key === "ArrowRight");
    if (event.key === "Enter" && state.partners.size) { reach([...state.partners][0]); return true; }
    return false;
  };
  const choose = (item, event) => {
    if (event && event.target.className === "toggle" && item.parts) unfold(item, !item.program.open.has(item.number));
    else select(item);
  };
  lists = { forward: new List(at("forward"), drawLine, choose, keys), backward: new List(at("backward"), drawLine, choose, keys) };
  tree = new List(at("tree"), drawNode, chooseModule, (event, node) => {
    if (!node || !["ArrowRight", "ArrowLeft"].includes(event.key)) return false;
    fold(node, event.key === "ArrowRight");
    return true;
  });
  savedList = new List(at("saved"), drawSaved, reachSaved);
  stageList = new List(at("stage-lines"), drawStageLine, () => {});
  for (const tab of document.querySelectorAll("[role=tab]")) tab.addEventListener("click", () => view(tab.dataset.view));
  for (const button of document.querySelectorAll(".fold"))
    button.addEventListener("click", () => {
      const program = state.graph.programs.find((one) => one.side === button.dataset.for);
      program.open = new Set(program.open.size ? [] : program.rows.filter((row) => row.parts).map((row) => row.number));
      refresh();
    });
  let timer;
  at("search").addEventListener("input", (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => search(event.target.value), 80);
  });
  at("search").addEventListener("keydown", (event) => { if (event.key === "Enter") nextMatch(event.shiftKey ? -1 : 1); });
  at("graph").addEventListener("change", chooseGraph);
  at("stage-program").addEventListener("change", chooseStages);
  at("stage").addEventListener("input", showStage);
  at("only-changes").addEventListener("change", showStage);
  at("help-button").addEventListener("click", () => at("help").showModal());
  at("plot").addEventListener("pointermove", (event) => {
    const box = at("plot").getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width) * plot.width - plot.left;
    moveTo(Math.floor((share / (plot.width - plot.left)) * (state.graph.lines + 1)));
  });
  at("plot").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageUp: 20, PageDown: -20 }[event.key];
    if (step) { moveTo(plot.line + step); event.preventDefault(); }
  });
  document.addEventListener("keydown", pressed);
  printing.addEventListener("change", () => { for (const list of [...Object.values(lists), tree, savedList, stageList]) list.render(); });
  addEventListener("resize", () => { if (!at("memory").hidden && state.graph) drawPlot(); });
}

function head() {
  document.title = `${data.name}: Switchgear`;
  at("name").textContent = data.name;
  const eager = data.eager_bytes ? `, ${(data.saved_bytes / data.eager_bytes).toFixed(2)} of eager's` : "";
  at("counts").textContent = [data.graphs.length ? `${size(data.saved_bytes)} saved for the backward${eager}` : "nothing is compiled", data.folded].filter(Boolean).join(". ");
  colours = new Map(data.executors.map((one, place) => [one.executor, `var(--e${place % 8})`]));
  for (const one of data.executors) {
    const item = element("li", "", `${one.executor} `);
    colour(item, one.executor);
    item.append(element("small", "", `${one.forward} forward, ${one.backward} backward${one.regions ? `, ${counted(one.regions, "region")}` : ""}`));
    at("legend").append(item);
  }
  at("alerts").hidden = !data.alerts.length;
  at("alerts").textContent = data.alerts.join("\n");
  at("summary-text").textContent = data.summary;
  at("graph").hidden = data.graphs.length < 2;
  at("graph").append(...data.graphs.map((graph, place) => element("option", "", graph.label || `graph ${place + 1}`)));
}

unpacked().then((payload) => {
  data = payload;
  connect();
  head();
  chooseGraph();
  view(data.graphs.length ? "program" : "summary");
  document.documentElement.dataset.ready = Math.round(performance.now());
}).catch((error) => {
  at("alerts").hidden = false;
  at("alerts").textContent = `This page cannot be shown: ${error.message}. It needs a browser of 2023 or later.`;
  console.error(error);
});
