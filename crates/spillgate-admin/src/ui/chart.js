// Draws the last ten minutes.

import { h, s, setAttribute, setText } from './dom.js';
import { clock } from './format.js';

const STEPS = 60;

// Steps before the server began to count are null.
const padded = (values) => [...Array(Math.max(0, STEPS - values.length)).fill(null), ...values.slice(-STEPS)];

// Adds series step by step. A step is null if it is null in the first series.
function stacked(series) {
  const all = series.map(padded);
  return all.map((_, index) => all[0].map((first, at) => (first === null ? null : all.slice(0, index + 1).reduce((sum, one) => sum + (one[at] ?? 0), 0))));
}

const short = (number) => Number(number.toFixed(1));

// The outline of an area of steps. Steps without a value are left out.
function area(values, highest, width, height) {
  let path = '';
  const step = width / STEPS;
  const y = (value) => short(height - (value / highest) * height);
  for (let at = 0; at < STEPS; at += 1) {
    if (values[at] === null) continue;
    const begins = at === 0 || values[at - 1] === null;
    if (begins) path += `M${short(at * step)} ${height}`;
    if (begins || values[at] !== values[at - 1]) path += `V${y(values[at])}`;
    path += `H${short((at + 1) * step)}`;
    if (at === STEPS - 1 || values[at + 1] === null) path += `V${height}Z`;
  }
  return path;
}

const highestOf = (layers) => Math.max(0, ...layers.flat().filter((value) => value !== null));

// A small chart of layers, without axes. The last of `classes` is the lowest layer.
export function spark(classes, width, height) {
  const paths = classes.map((name) => s('path', { class: name }));
  const svg = s('svg.spark', { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', role: 'img' }, ...paths,
    s('path.base', { d: `M0 ${height}H${width}` }));
  return {
    element: svg,
    // `series` has the lowest layer first.
    set(series, label) {
      const layers = stacked(series);
      const highest = Math.max(highestOf(layers), 1e-9);
      layers.reverse().forEach((layer, index) => setAttribute(paths[index], 'd', area(layer, highest, width, height - 1)));
      setAttribute(svg, 'aria-label', label);
    },
  };
}

// The next number that people like to read, at most a third more.
function roundUp(number) {
  const power = 10 ** Math.floor(Math.log10(number));
  return power * ([1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8].find((digit) => digit * power >= number * 0.999) ?? 10);
}

// The same for milliseconds, and above a second as on clocks, up to 2 % less.
export function roundUpMs(ms) {
  const seconds = [1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400];
  return ms <= 500 ? roundUp(ms) : 1000 * (seconds.find((one) => one * 1020 >= ms) ?? 86_400 * roundUp(ms / 86_400_000));
}

const [WIDTH, HEIGHT] = [600, 120];

// A chart with axes. `layers` are [class, name] with the lowest first. A layer [class, name, true] is only named if it has values. `up` rounds the highest value up to the end of the axis.
export function chart(title, layers, show, up = roundUp) {
  const paths = layers.map(([name]) => s('path', { class: name })).reverse();
  const cursor = s('path.cursor');
  const grid = s('path.grid', { d: `M0 0.5H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}` });
  const svg = s('svg.plot', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img' }, grid, ...paths, cursor);
  const [top, middle, from, to, readout] = [h('span'), h('span'), h('span'), h('span'), h('span.readout')];
  const legend = layers.map(([name, text]) => h(`span.key.${name}`, text));
  let shown = { values: [], ends_ms: 0, step_ms: 1 };
  const named = () => layers.map(([, text, isSeldom], index) => [text, index, isSeldom]).filter(([, index, isSeldom]) => !isSeldom || shown.values[index]?.some((value) => value > 0));
  const describe = (at) => {
    const end = shown.ends_ms - (STEPS - 1 - at) * shown.step_ms;
    return `${clock(end)}: ${named().map(([text, index]) => `${text} ${shown.values[index][at] === null ? 'unknown' : show(shown.values[index][at])}`).join(', ')}`;
  };
  let pointed = null;
  const point = (at) => {
    pointed = at;
    setAttribute(cursor, 'd', at === null ? 'M0 0' : `M${short((at + 0.5) * (WIDTH / STEPS))} 0V${HEIGHT}`);
    setText(readout, at === null || !shown.values.length ? '' : describe(at));
  };
  svg.addEventListener('pointermove', (event) => {
    const box = svg.getBoundingClientRect();
    point(Math.max(0, Math.min(STEPS - 1, Math.floor(((event.clientX - box.left) / box.width) * STEPS))));
  });
  svg.addEventListener('pointerleave', () => point(null));
  const element = h('figure.chart',
    h('figcaption', h('strong', title), h('span.legend', ...legend), readout),
    h('div.frame', h('div.scale', { 'aria-hidden': 'true' }, top, middle, h('span', show(0))), svg,
      h('div.times', { 'aria-hidden': 'true' }, from, to)));
  return {
    element,
    // `series` are the values of each layer: a rate, or null where there is none.
    set(series, { history_at_ms, at_ms, step_ms }) {
      const ends_ms = history_at_ms ?? at_ms;
      shown = { values: series.map(padded), ends_ms, step_ms };
      const sums = layers.length > 1 ? stacked(series) : [padded(series[0])];
      const highest = up(Math.max(highestOf(sums), 1));
      [...sums].reverse().forEach((layer, index) => setAttribute(paths[index], 'd', area(layer, highest, WIDTH, HEIGHT)));
      setText(top, show(highest));
      setText(middle, show(highest / 2));
      setText(from, clock(ends_ms - STEPS * step_ms));
      setText(to, clock(ends_ms));
      const values = shown.values.map((values) => values.filter((value) => value !== null));
      legend.forEach((key, index) => { key.hidden = !named().some(([, at]) => at === index); });
      const texts = named().map(([text, index]) => `${text} ${values[index].length ? `${show(values[index].at(-1))} now, at most ${show(Math.max(...values[index]))}` : 'none'}`);
      setAttribute(svg, 'aria-label', `${title}, last ten minutes: ${texts.join('; ')}`);
      point(pointed);
    },
  };
}

export function bar(name) {
  const part = s('rect.part', { height: 6, width: 0 });
  const element = s('svg', { class: `bar ${name}`, viewBox: '0 0 100 6', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, s('rect.rest', { width: 100, height: 6 }), part);
  return {
    element,
    set(part_of, whole) {
      const percent = whole > 0 ? Math.min(100, (100 * part_of) / whole) : 0;
      setAttribute(part, 'width', String(percent > 0 ? Math.max(1.5, short(percent)) : 0));
      return this;
    },
  };
}
