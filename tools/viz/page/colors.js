// Colors come from the style sheet, so that they follow the system's light or dark mode.
const hues = {
  pointwise: 210, reduction: 35, view: 0, matmul: 275, conv: 300, index: 165, scatter: 150, rng: 340, factory: 60,
  copy: 190, multi_tensor: 240, norm: 95, attention: 320, composite: 20, opaque: 0,
};
const theme = {};

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["back", "panel", "ink", "quiet", "line", "edge", "accent", "hit", "box-ink", "saturation", "lightness", "rim"]) {
    theme[name] = style.getPropertyValue(`--${name}`).trim();
  }
}

const plainFamily = (family) => family === "opaque" || family === "view";
const fillOf = (hue, plain) => `hsl(${hue} ${plain ? "4%" : theme.saturation} ${theme.lightness})`;
const rimOf = (hue, plain) => `hsl(${hue} ${plain ? "4%" : theme.saturation} ${theme.rim})`;

// The family that most of the part's ops have.
function familyOf(p) {
  const count = {};
  let best = nodes[p.first].family;
  for (let n = p.first; n <= p.last; ++n) {
    const family = nodes[n].family;
    count[family] = (count[family] || 0) + 1;
    if (count[family] > (count[best] || 0)) best = family;
  }
  return best;
}

const groupOf = (n) => data.graph.groups[nodes[n].group];
// From blue (zero) to red (the maximum), by the square root, so that medium values are visible.
function byAmount(amount) {
  return (p, largest) => ({ hue: 230 - 230 * Math.sqrt(amount(p) / (largest || 1)), plain: amount(p) === 0 });
}

// The colorings of the program that is shown; makeColorings sets them.
let colorings, amounts;

function makeColorings() {
  colorings = { family: (p) => ({ hue: hues[familyOf(p)] ?? 0, plain: plainFamily(familyOf(p)) }) };
  amounts = {};
  // The color of a group that one kernel may compute; adjacent groups differ. Plain: none of the ops is in a group.
  if (data.graph.groups.some((group) => group.kind)) {
    colorings.group = (p) => ({ hue: (nodes[p.first].group * 137) % 360, plain: !groupOf(p.first).kind });
  }
  if (data.times.length > 0) amounts.time = (p) => timeOf(p.first, p.last);
  if (data.bytes.length > 0) amounts.bytes = (p) => data.bytes.slice(p.first, p.last + 1).reduce((a, b) => a + b, 0);
  for (const name of Object.keys(amounts)) colorings[name] = byAmount(amounts[name]);
}
