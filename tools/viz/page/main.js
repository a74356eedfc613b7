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
  document.getElementById("title").textContent = data.title;
  const time = nodes.length > 0 ? timeOf(0, nodes.length - 1) : 0;
  document.getElementById("summary").textContent =
    `${nodes.length} ops, ${data.graph.buffers.length} buffers, ${data.graph.params} parameters` +
    (time > 0 ? `, ${formatTime(time)}` : "");
  levelNames.forEach((name, i) => {
    element("button", name, undefined, document.getElementById("levels")).onclick = () => setLevel(i);
  });
  const choice = document.getElementById("color");
  for (const name of Object.keys(colorings)) element("option", name, undefined, choice);
  choice.onchange = () => { coloring = choice.value; recolor(); showLegend(); redraw(); };
  document.getElementById("fit").onclick = () => { fit(); redraw(); };
}

// -- search ----------------------------------------------------------------------------------------------------------------

const searchTexts = nodes.map((node) => {
  const tensors = [...node.args, ...node.results].flatMap(tensorsIn);
  const words = tensors.map((t) => ` %${t.view} ${t.buffer} ${t.dtype ?? ""}`).join("");
  return `${node.op} ${node.family} op ${node.index} ${node.source ?? ""}${words} `.toLowerCase();
});

// Every word must occur; %7 and b3 match only whole words.
function runSearch() {
  const words = searchBox.value.toLowerCase().split(/\s+/).filter(Boolean).map((w) => (/^(%|b)\d+$/.test(w) ? ` ${w} ` : w));
  order = [];
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
readTheme();
makeHeader();
showLegend();
document.getElementById("empty").hidden = nodes.length > 0;
resizeCanvas(graphCanvas, view);
setLevel(startLevel());
drawAll();

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
