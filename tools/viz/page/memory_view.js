// The memory that the program makes: one bar for each buffer, from its first node to its last one, as high as it is
// large, at the place that the worker's placement would give it. The line is what is alive at each node.
const memorySection = document.getElementById("memory");
const memoryCanvas = memorySection.querySelector("canvas");
const memoryView = { width: 0, height: 0, from: 0, to: 1 };  // from, to: the nodes that are shown
const memoryTop = 24, memoryLeft = 8;
let hoveredBar = null;

const memoryAmount = (bytes) => (data.memory.sizes_known ? formatBytes(bytes) : `${bytes} buffers`);
const memoryX = (node) =>
  memoryLeft + ((node - memoryView.from) / (memoryView.to - memoryView.from)) * (memoryView.width - 2 * memoryLeft);
const memoryScale = () => (memoryView.height - memoryTop - 6) / Math.max(1, data.memory.height);
const memoryY = (bytes) => memoryView.height - 4 - bytes * memoryScale();
const nodeAtX = (x) =>
  memoryView.from + ((x - memoryLeft) / (memoryView.width - 2 * memoryLeft)) * (memoryView.to - memoryView.from);

function drawBars(context) {
  for (const bar of data.memory.bars) {
    const [buffer, first, last, offset, bytes] = bar;
    const x1 = memoryX(first), x2 = memoryX(last + 1);
    if (x2 < 0 || x1 > memoryView.width) continue;
    const hue = data.graph.buffers[buffer].survives ? 35 : 210;
    const width = Math.max(0.6, x2 - x1 - 0.4), y = memoryY(offset + bytes), height = Math.max(0.6, bytes * memoryScale() - 0.4);
    context.fillStyle = bar === hoveredBar ? theme.accent : fillOf(hue, false);
    context.fillRect(x1, y, width, height);
    if (width > 3 && height > 3) {
      context.strokeStyle = rimOf(hue, false);
      context.lineWidth = 0.6;
      context.strokeRect(x1, y, width, height);
    }
    if (height > 11 && width > 40) {
      context.fillStyle = theme["box-ink"];
      context.fillText(clipped(context, `b${buffer}  ${memoryAmount(bytes)}`, width - 8), x1 + 4, y + Math.min(height / 2 + 4, 12));
    }
  }
}

function drawLive(context) {
  const { live, peak } = data.memory;
  context.strokeStyle = theme.ink;
  context.lineWidth = 1.2;
  context.beginPath();
  // If one pixel covers many nodes, shows their maximum.
  const step = Math.max(1, Math.floor((memoryView.to - memoryView.from) / memoryView.width));
  const begin = Math.max(0, Math.floor(memoryView.from / step) * step);
  for (let n = begin; n < Math.min(live.length, Math.ceil(memoryView.to)); n += step) {
    const y = memoryY(Math.max(...live.slice(n, n + step)));
    context.lineTo(memoryX(n), y);
    context.lineTo(memoryX(n + step), y);
  }
  context.stroke();
  const y = memoryY(live[peak]);
  context.strokeStyle = context.fillStyle = "#d5473b";
  context.setLineDash([5, 4]);
  context.beginPath();
  context.moveTo(0, y);
  context.lineTo(memoryView.width, y);
  context.stroke();
  context.setLineDash([]);
  context.fillRect(memoryX(peak + 0.5) - 2, y - 2, 4, 4);
}

function drawMemory() {
  const context = resizeCanvas(memoryCanvas, memoryView);
  context.fillStyle = theme.panel;
  context.fillRect(0, 0, memoryView.width, memoryView.height);
  context.font = "11px system-ui, sans-serif";
  const { live, peak } = data.memory;
  if (live.length === 0 || data.memory.bars.length === 0) {
    context.fillStyle = theme.quiet;
    context.fillText("This graph makes no buffers.", memoryLeft, 16);
    return;
  }
  const marked = hovered ? [hovered.part.first, hovered.part.last] : selected === null ? null : [selected, selected];
  if (marked) {
    context.fillStyle = theme.accent;
    context.globalAlpha = 0.25;
    context.fillRect(memoryX(marked[0]), memoryTop - 4, Math.max(2, memoryX(marked[1] + 1) - memoryX(marked[0])), memoryView.height);
    context.globalAlpha = 1;
  }
  drawBars(context);
  drawLive(context);
  context.fillStyle = theme.ink;
  const sizes = data.memory.sizes_known ? "" : "; sizes are not known without a run, so each buffer counts as one";
  context.fillText(
    `memory over the ops: peak ${memoryAmount(live[peak])} at op ${peak} (${shortName(nodes[peak].op)})${sizes}`, memoryLeft, 15);
}

function barAt(x, y) {
  const node = Math.floor(nodeAtX(x));
  return data.memory.bars.find(([, first, last, offset, bytes]) =>
    first <= node && node <= last && memoryY(offset + bytes) <= y && y <= memoryY(offset)) || null;
}

function showWholeMemory() {
  memoryView.from = 0;
  memoryView.to = Math.max(1, nodes.length);
  hoveredBar = null;
}

function zoomMemory(x, factor) {
  const at = nodeAtX(x);
  const span = Math.min(nodes.length, Math.max(4, (memoryView.to - memoryView.from) * factor));
  const share = (at - memoryView.from) / (memoryView.to - memoryView.from);
  moveMemory(at - share * span, span);
}

function moveMemory(from, span) {
  memoryView.from = Math.max(0, Math.min(nodes.length - span, from));
  memoryView.to = memoryView.from + span;
}
