// Layered layout (Sugiyama et al. 1981): layers by the longest path, order by barycenters, then x by isotonic regression
// towards the middle of the neighbors. Layers that are too wide (an optimizer's thousand updates) are wrapped.
const boxWidth = 190, boxHeight = 38, gapX = 22, rowHeight = 84;

function layout(parts) {
  const boxOf = new Int32Array(nodes.length);
  const boxes = parts.map((p, index) => {
    boxOf.fill(index, p.first, p.last + 1);
    return { part: p, index, ins: [], outs: [], layer: 0, x: 0, y: 0, order: index };
  });
  for (const [from, to] of data.edges) {
    const a = boxOf[from], b = boxOf[to];
    if (a !== b && boxes[b].ins[boxes[b].ins.length - 1] !== a) boxes[b].ins.push(a);
  }
  for (const box of boxes) {
    box.ins = [...new Set(box.ins)];
    for (const from of box.ins) boxes[from].outs.push(box.index);
  }
  assignLayers(boxes);
  const rows = makeRows(boxes);
  for (let sweep = 0; sweep < 6; ++sweep) {
    const down = sweep % 2 === 0;
    for (const row of down ? rows : [...rows].reverse()) orderRow(row, boxes, down);
  }
  for (let sweep = 0; sweep < 8; ++sweep) {
    const down = sweep % 2 === 0;
    for (const row of down ? rows : [...rows].reverse()) placeRow(row, boxes, down);
  }
  rows.forEach((row, index) => row.forEach((box) => { box.y = index * rowHeight; }));
  return { boxes, rows, boxOf };
}

// Parts are in program order, so the inputs of a box have smaller indices.
function assignLayers(boxes) {
  for (const box of boxes) {
    for (const from of box.ins) box.layer = Math.max(box.layer, boxes[from].layer + 1);
  }
  for (let i = boxes.length - 1; i >= 0; --i) {  // a box without inputs goes next to its first user
    const box = boxes[i];
    if (box.ins.length > 0 || box.outs.length === 0) continue;
    box.layer = Math.min(...box.outs.map((to) => boxes[to].layer)) - 1;
  }
}

function makeRows(boxes) {
  const layers = new Map();
  for (const box of boxes) {
    if (!layers.has(box.layer)) layers.set(box.layer, []);
    layers.get(box.layer).push(box);
  }
  const widest = Math.max(12, Math.ceil(Math.sqrt(boxes.length) * 0.8));
  const rows = [];
  for (const layer of [...layers.keys()].sort((a, b) => a - b)) {
    const all = layers.get(layer);
    const count = Math.ceil(all.length / widest);
    const length = Math.ceil(all.length / count);
    for (let i = 0; i < all.length; i += length) rows.push(all.slice(i, i + length));
  }
  for (const row of rows) spread(row);
  return rows;
}

function spread(row) {
  row.forEach((box, i) => { box.x = (i - (row.length - 1) / 2) * (boxWidth + gapX); });
}

function middle(box, boxes, down) {
  const neighbors = down ? box.ins : box.outs;
  if (neighbors.length === 0) return box.x;
  let sum = 0;
  for (const other of neighbors) sum += boxes[other].x;
  return sum / neighbors.length;
}

function orderRow(row, boxes, down) {
  for (const box of row) box.wish = middle(box, boxes, down);
  row.sort((a, b) => a.wish - b.wish || a.index - b.index);
  spread(row);
}

// Returns the positions nearest to the desired ones that keep order and distance: pool adjacent violators.
function placeRow(row, boxes, down) {
  const step = boxWidth + gapX;
  const pools = [];
  row.forEach((box, i) => {
    let pool = { sum: middle(box, boxes, down) - i * step, count: 1 };
    while (pools.length > 0 && pools[pools.length - 1].sum / pools[pools.length - 1].count > pool.sum / pool.count) {
      const before = pools.pop();
      pool = { sum: before.sum + pool.sum, count: before.count + pool.count };
    }
    pools.push(pool);
  });
  let i = 0;
  for (const pool of pools) {
    for (let k = 0; k < pool.count; ++k, ++i) row[i].x = pool.sum / pool.count + i * step;
  }
}
