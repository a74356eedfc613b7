// The texts of the tooltip and of the panel at the side.
const tooltip = document.getElementById("tooltip");
const details = document.getElementById("details");

function element(tag, text, className, parent) {
  const out = document.createElement(tag);
  if (text !== undefined) out.textContent = text;
  if (className) out.className = className;
  if (parent) parent.appendChild(out);
  return out;
}

function tableRow(table, name, value) {
  const row = element("tr", undefined, undefined, table);
  element("td", name, undefined, row);
  element("td", value, undefined, row);
}

function tensorRows(table, name, arg) {
  const tensors = tensorsIn(arg);
  tableRow(table, name, argumentText(arg));
  for (const tensor of tensors.slice(0, 4)) if (tensor.shape !== null) tableRow(table, "", layoutText(tensor));
  if (tensors.length > 4) tableRow(table, "", `and ${tensors.length - 4} more`);
}

function describeNode(parent, n) {
  const node = nodes[n];
  element("div", node.op, "name", parent);
  element("div", `op ${n}, ${node.family.replace("_", " ")}`, "quiet", parent);
  const group = groupOf(n);
  if (group.kind) {
    const others = group.nodes.length > 1 ? ` with ops ${group.nodes[0]} to ${group.nodes[group.nodes.length - 1]}` : "";
    element("div", `in a group${others}: ${[group.kind.replace("_", " "), ...group.properties].join(", ")}`, "quiet", parent);
  }
  if (node.source) element("div", node.source, "source", parent);
  const table = element("table", undefined, undefined, parent);
  for (const arg of node.args) if (arg.kind !== "none") tensorRows(table, arg.name, arg);
  node.results.forEach((result, i) => {
    if (result.kind !== "alias" && result.kind !== "none") tensorRows(table, node.results.length > 1 ? `result ${i}` : "result", result);
  });
  const time = data.times[n];
  if (time) tableRow(table, "time", `p50 ${formatTime(time[0])}, p99 ${formatTime(time[1])}`);
  if (data.runners[n]) tableRow(table, "runner", data.runners[n]);
  if (data.bytes.length > 0) tableRow(table, "bytes", formatBytes(data.bytes[n]));
}

function describePart(parent, p) {
  element("div", p.label, "name", parent);
  element("div", `ops ${p.first} to ${p.last}: click to open`, "quiet", parent);
  const count = {};
  for (let n = p.first; n <= p.last; ++n) count[shortName(nodes[n].op)] = (count[shortName(nodes[n].op)] || 0) + 1;
  const names = Object.entries(count).sort((a, b) => b[1] - a[1]);
  const table = element("table", undefined, undefined, parent);
  for (const [name, times] of names.slice(0, 10)) tableRow(table, String(times), name);
  if (names.length > 10) tableRow(table, "", `and ${names.length - 10} others`);
  const time = timeOf(p.first, p.last);
  if (time > 0) tableRow(table, "time", formatTime(time));
}

function describeBar(parent, [buffer, first, last, , bytes]) {
  const info = data.graph.buffers[buffer];
  element("div", `buffer b${buffer}`, "name", parent);
  const table = element("table", undefined, undefined, parent);
  tableRow(table, "size", data.memory.sizes_known ? formatBytes(bytes) : expression(info.nbytes ?? "known after the run"));
  tableRow(table, "made by", `op ${first}: ${shortName(nodes[first].op)}`);
  tableRow(table, "until", info.survives ? "it outlives the program" : `op ${last}: ${shortName(nodes[last].op)}`);
  if (info.may_reuse) tableRow(table, "may reuse", `the memory of ${info.may_reuse}, if it fits`);
}

function showTooltip(x, y, fill) {
  tooltip.replaceChildren();
  fill(tooltip);
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  tooltip.style.left = `${Math.max(4, x + 16 + width > window.innerWidth ? x - width - 10 : x + 16)}px`;
  tooltip.style.top = `${Math.max(4, Math.min(y + 16, window.innerHeight - height - 6))}px`;
}

function linkList(title, list) {
  if (list.length === 0) return;
  element("h2", title, undefined, details);
  const items = element("ul", undefined, undefined, details);
  for (const n of list.slice(0, 40)) {
    const link = element("a", `op ${n}: ${shortName(nodes[n].op)}`, undefined, element("li", undefined, undefined, items));
    link.onclick = () => goTo(n);
  }
  if (list.length > 40) element("li", `and ${list.length - 40} more`, "quiet", items);
}

function showDetails() {
  const shown = selected !== null;
  const moved = details.hidden === shown;
  details.hidden = !shown;
  details.replaceChildren();
  if (shown) {
    describeNode(details, selected);
    linkList("needs", inputsOf[selected]);
    linkList("needed by", usersOf[selected]);
    const buttons = element("span", undefined, "buttons", details);
    for (const p of partsAround(selected)) {
      if (!p.open || p.children.length < 2) continue;
      const name = levelNames[p.level].slice(0, -1);
      element("button", `close this ${name}`, undefined, buttons).onclick = () => {
        const node = selected;
        selected = null;
        setOpen(p, false, node);
      };
    }
    element("button", "×", undefined, buttons).onclick = () => select(null);
  }
  if (moved) drawAll();
}
