// Mouse, keys and buttons.
const searchBox = document.getElementById("search");
const found = document.getElementById("found");
let level = 0;
let order = [];    // nodes that the search found
let current = -1;  // which of them is shown

function drawAll() {
  drawGraph();
  drawMemory();
}

let frame = 0;
function redraw() {
  if (frame === 0) frame = requestAnimationFrame(() => { frame = 0; drawAll(); });
}

function select(node) {
  selected = node;
  showDetails();
  redraw();
}

// -- header ----------------------------------------------------------------------------------------------------------------

function showLevel() {
  [...document.getElementById("levels").children].forEach((button, i) => button.classList.toggle("on", i === level));
}

function setLevel(to) {
  level = to;
  openTo(level);
  relayout();
  fit();
  showLevel();
  redraw();
}

// Returns the finest level whose number of boxes is still readable.
function startLevel() {
  for (let to = levelNames.length - 1; to > 0; --to) {
    openTo(to);
    if (visibleParts().length <= 400) return to;
  }
  return 0;
}

function makeHeader() {
  document.getElementById("levels").replaceChildren();
  levelNames.forEach((name, i) => {
    element("button", name, undefined, document.getElementById("levels")).onclick = () => setLevel(i);
  });
  const choice = document.getElementById("color");
  choice.replaceChildren();
  for (const name of Object.keys(colorings)) element("option", name, undefined, choice);
  if (!(coloring in colorings)) coloring = "family";
  choice.value = coloring;
  choice.onchange = () => { coloring = choice.value; recolor(); showLegend(); redraw(); };
  document.getElementById("fit").onclick = () => { fit(); redraw(); };
}

// -- programs --------------------------------------------------------------------------------------------------------------

const programMenu = document.getElementById("program");
let shownProgram = menu.shown;  // index in menu.programs

const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

function programText(program) {
  const runners = program.runner_counts.map(([name, count]) => `${name} ${count}`).join(", ");
  const parts = [plural(program.ops, "op")];
  if (program.groups > 0) parts.push(plural(program.groups, "group"));
  if (program.runs !== null) parts.push(plural(program.runs, "run"));
  if (program.us !== null) parts.push(program.runs === null ? formatTime(program.us) : `${formatTime(program.us)} each`);
  if (runners) parts.push(runners);
  return parts.join(", ");
}

function showMessage(text) {
  const message = document.getElementById("message");
  message.textContent = text;
  message.hidden = text === "";
}

function showProgram(index) {
  const program = menu.programs[index];
  if (data) select(null);  // closes the panel while the graph that it belongs to is still there
  shownProgram = index;
  readProgram(program);
  makeColorings();
  makeHeader();
  showLegend();
  showWholeMemory();
  const name = program.number > 0 && menu.programs.length > 1 ? `program ${program.number} of ${menu.title}` : menu.title;
  document.title = name;
  document.getElementById("title").textContent = menu.title;
  const time = nodes.length > 0 ? timeOf(0, nodes.length - 1) : 0;
  document.getElementById("summary").textContent =
    `${plural(nodes.length, "op")}, ${plural(data.graph.buffers.length, "buffer")}, ${plural(data.graph.params, "parameter")}` +
    (time > 0 ? `, ${formatTime(time)}` : "");
  document.getElementById("empty").hidden = nodes.length > 0;
  programMenu.value = index;
  tooltip.hidden = true;
  searchTexts = null;
  runSearch();
  resizeCanvas(graphCanvas, view);
  setLevel(startLevel());
  drawAll();
}

function makeProgramMenu() {
  document.getElementById("programs").hidden = menu.programs.length < 2;
  menu.programs.forEach((program, index) => {
    const missing = program.entry === null ? ` (${program.missing})` : "";
    const option = element("option", `${program.number}: ${programText(program)}${missing}`, undefined, programMenu);
    option.value = index;
    option.disabled = program.entry === null;
  });
  programMenu.onchange = () => { location.hash = `program=${menu.programs[programMenu.value].number}`; };
}

// Goes to the next program in the menu that the page has; `step`: 1 or -1.
function stepProgram(step) {
  let index = shownProgram + step;
  while (index in menu.programs && menu.programs[index].entry === null) index += step;
  if (index in menu.programs) location.hash = `program=${menu.programs[index].number}`;
}

// Shows the program that the fragment of the URL names, #program=3. Without a fragment: the one that takes most time.
function followFragment() {
  const fragment = location.hash.slice(1);
  const match = /^program=(\d+)$/.exec(fragment);
  const index = match ? menu.programs.findIndex((program) => program.number === Number(match[1])) : -1;
  const program = menu.programs[index];
  if (program && program.entry !== null) {
    showMessage("");
    showProgram(index);
    return;
  }
  if (program) {
    showMessage(`Program ${program.number} is not on this page: ${program.missing}. remote-viz --program ${program.number} makes a page with it.`);
  } else if (fragment !== "") {
    const numbers = menu.programs.filter((p) => p.entry !== null && p.number > 0).map((p) => p.number);
    const known = numbers.slice(0, 20).join(", ") + (numbers.length > 20 ? ` and ${numbers.length - 20} more` : "");
    showMessage(`This page has no "${fragment}".` + (known ? ` Write #program=N with one of its programs: ${known}.` : ""));
  } else {
    showMessage("");
  }
  showProgram(menu.shown);
}

// -- search ----------------------------------------------------------------------------------------------------------------

let searchTexts = null;  // of the nodes of the program that is shown; made by the first search

function makeSearchTexts() {
  return nodes.map((node) => {
    const tensors = [...node.args, ...node.results].flatMap(tensorsIn);
    const words = tensors.map((t) => ` %${t.view} ${t.buffer} ${t.dtype ?? ""}`).join("");
    return `${node.op} ${node.family} op ${node.index} ${node.source ?? ""}${words} `.toLowerCase();
  });
}

// Every word must occur; %7 and b3 match only whole words.
function runSearch() {
  const words = searchBox.value.toLowerCase().split(/\s+/).filter(Boolean).map((w) => (/^(%|b)\d+$/.test(w) ? ` ${w} ` : w));
  order = [];
  if (words.length > 0) searchTexts ??= makeSearchTexts();
  if (words.length > 0) searchTexts.forEach((text, n) => { if (words.every((word) => text.includes(word))) order.push(n); });
  hits = new Set(order);
  current = -1;
  found.textContent = words.length > 0 ? `${order.length} ops` : "";
  redraw();
}

function nextHit(step) {
  if (order.length === 0) return;
  current = (current + step + order.length) % order.length;
  goTo(order[current]);
  found.textContent = `${current + 1} of ${order.length}`;
}

searchBox.oninput = runSearch;
searchBox.onkeydown = (event) => {
  if (event.key === "Enter") nextHit(event.shiftKey ? -1 : 1);
  if (event.key === "Escape") { searchBox.value = ""; runSearch(); searchBox.blur(); }
  event.stopPropagation();
};
window.onkeydown = (event) => {
  if (event.target === programMenu || event.target.id === "color") return;  // letters choose in a menu
  if (event.key === "[" || event.key === "]") stepProgram(event.key === "[" ? -1 : 1);
  if (event.key === "/") { searchBox.focus(); event.preventDefault(); }
  if (event.key === "f") { fit(); redraw(); }
  if (event.key === "Escape") select(null);
  if (event.key === "+" || event.key === "-") { zoomAt(view.width / 2, view.height / 2, event.key === "+" ? 1.3 : 1 / 1.3); redraw(); }
};

// -- mouse -----------------------------------------------------------------------------------------------------------------

const wheelFactor = (event) => Math.exp(-Math.max(-80, Math.min(80, event.deltaY)) * 0.004);

// Calls move(dx, dy) while the button is down, click() if the mouse did not move meanwhile.
function draggable(target, move, click) {
  target.onpointerdown = (down) => {
    let last = down, far = 0;
    target.setPointerCapture(down.pointerId);
    target.onpointermove = (event) => {
      far += Math.abs(event.clientX - last.clientX) + Math.abs(event.clientY - last.clientY);
      if (far > 3) { target.classList.add("drag"); move(event.clientX - last.clientX, event.clientY - last.clientY); }
      last = event;
    };
    target.onpointerup = () => {
      target.onpointermove = target.onpointerup = null;
      target.classList.remove("drag");
      if (far <= 3 && click) click(down);
    };
  };
}

graphCanvas.onwheel = (event) => {
  event.preventDefault();
  if (event.shiftKey) view.x += event.deltaY / view.scale;
  else zoomAt(event.offsetX, event.offsetY, wheelFactor(event));
  redraw();
};
draggable(graphCanvas, (dx, dy) => {
  view.x -= dx / view.scale;
  view.y -= dy / view.scale;
  redraw();
}, (event) => {
  const box = boxAt(event.offsetX, event.offsetY);
  if (box && box.part.children.length > 0) setOpen(box.part, true, box.part.first);
  else select(box ? box.part.first : null);
});
graphCanvas.onmousemove = (event) => {
  const box = boxAt(event.offsetX, event.offsetY);
  graphCanvas.classList.toggle("over", box !== null);
  if (box) showTooltip(event.clientX, event.clientY, (parent) =>
    box.part.children.length > 0 ? describePart(parent, box.part) : describeNode(parent, box.part.first));
  else tooltip.hidden = true;
  if (box !== hovered) { hovered = box; redraw(); }
};
graphCanvas.onmouseleave = () => { tooltip.hidden = true; hovered = null; redraw(); };

memoryCanvas.onwheel = (event) => {
  event.preventDefault();
  zoomMemory(event.offsetX, 1 / wheelFactor(event));
  redraw();
};
draggable(memoryCanvas, (dx) => {
  const span = memoryView.to - memoryView.from;
  moveMemory(memoryView.from - (dx / memoryView.width) * span, span);
  redraw();
}, (event) => {
  const bar = barAt(event.offsetX, event.offsetY);
  if (bar) goTo(bar[1]);
});
memoryCanvas.onmousemove = (event) => {
  hoveredBar = barAt(event.offsetX, event.offsetY);
  if (hoveredBar) showTooltip(event.clientX, event.clientY - 140, (parent) => describeBar(parent, hoveredBar));
  else tooltip.hidden = true;
  redraw();
};
memoryCanvas.onmouseleave = () => { tooltip.hidden = true; hoveredBar = null; redraw(); };

draggable(document.getElementById("splitter"), (dx, dy) => {
  const height = memorySection.clientHeight - dy;
  memorySection.style.height = `${Math.max(40, Math.min(window.innerHeight - 160, height))}px`;
  drawAll();
});

// -- start -----------------------------------------------------------------------------------------------------------------

window.onresize = drawAll;
matchMedia("(prefers-color-scheme: dark)").onchange = () => { readTheme(); recolor(); showLegend(); drawAll(); };
window.onhashchange = followFragment;
readTheme();
makeProgramMenu();
followFragment();

// For scripts: moves to an op, and returns its position on the page.
window.remoteViz = {
  locate(node) {
    goTo(node);
    const box = drawn.boxes[drawn.boxOf[node]];
    const [x, y] = toScreen(box.x, box.y);
    const area = graphCanvas.getBoundingClientRect();
    return { x: area.left + x, y: area.top + y };
  },
};
