// Numbers and times as texts for people. Durations look as in rules files.
// The server describes limits: `label` is what a limit is called, `summary` is what it allows.

const UNITS = [['d', 86_400e9], ['h', 3_600e9], ['m', 60e9]];
const SMALL_UNITS = [['s', 1e9], ['ms', 1e6], ['µs', 1e3], ['ns', 1]];

function scaled(number, units) {
  const [unit, size] = units.find(([, of]) => number < of * 999.5) ?? units.at(-1);
  return `${Number((number / size).toPrecision(3))} ${unit}`;
}

export const exact = (number) => number.toLocaleString('en');

// A number, with an SI prefix if it is large: 12, 12,345, 1.23 M.
export function count(number) {
  if (number < 100_000) return exact(Math.round(number));
  return scaled(number, [['k', 1e3], ['M', 1e6], ['G', 1e9], ['T', 1e12], ['P', 1e15]]);
}

export const bytes = (number) => scaled(number, [['B', 1], ['KiB', 2 ** 10], ['MiB', 2 ** 20], ['GiB', 2 ** 30], ['TiB', 2 ** 40]]);

export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? '' : 's'}`;

// Events a second: 0, 0.2, 12.3, 1,234, 12.3 k. Null is unknown.
export function rate(number) {
  if (number === null) return '–';
  if (number === 0) return '0';
  if (number < 0.05) return '< 0.1';
  return number < 99.95 ? number.toFixed(1) : count(number);
}

export const perSecond = (number) => `${rate(number).replace(/\.0$/, '')} / s`;

export function share(part, whole) {
  if (!(whole > 0)) return '–';
  const percent = (100 * part) / whole;
  if (percent === 0 || percent === 100) return `${percent} %`;
  if (percent < 0.1) return '< 0.1 %';
  return percent > 99.9 ? '> 99.9 %' : `${percent.toFixed(percent < 9.95 || percent >= 99.5 ? 1 : 0)} %`;
}

// A duration with its two largest units, rounded up: 9m42s, 1h30m, 1.34s, 420µs.
export function duration(ns) {
  const index = UNITS.findIndex(([, size]) => ns >= size);
  if (index < 0) {
    const [unit, size] = SMALL_UNITS.find(([, of]) => ns >= of) ?? ['s', 1e9];
    const digits = ns >= size * 100 ? 0 : ns >= size * 10 ? 1 : 2;
    const step = 10 ** digits;
    return `${Math.ceil((ns / size) * step - 1e-6) / step}${unit}`;
  }
  const [unit, size] = UNITS[index];
  const [below, belowSize] = UNITS[index + 1] ?? ['s', 1e9];
  const parts = Math.ceil(ns / belowSize - 1e-9);
  const perUnit = Math.round(size / belowSize);
  const [whole, rest] = [Math.floor(parts / perUnit), parts % perUnit];
  return `${whole}${unit}${rest > 0 ? `${rest}${below}` : ''}`;
}

export const durationMs = (ms) => duration(ms * 1e6);

export const left = (ms) => (ms <= 0 ? '0s' : durationMs(Math.ceil(ms / 1000) * 1000));

const CLOCK = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const DAY = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short', year: 'numeric' });

export const clock = (ms) => CLOCK.format(ms);

// A time of day, with the day if it is not today.
export function time(ms) {
  const isToday = new Date(ms).toDateString() === new Date().toDateString();
  return isToday ? clock(ms) : `${DAY.format(ms)}, ${clock(ms)}`;
}

// "GMT+0100 (Central European Time)".
export const zone = () => new Date().toTimeString().slice(9);

// What happened to the requests over a limit, by how many were refused and how many passed only because of shadow.
export function overWords(refused, would) {
  if (!(would > 0)) return { now: 'refuses', past: 'refused' };
  return refused > 0 ? { now: 'over the limit', past: 'over the limit' } : { now: 'would refuse', past: 'would be refused' };
}

const VERDICTS = {
  too_early: ['too early', 'faint'], never_passes: ['can never pass', 'bad'], above_rate: ['above the rate', 'warn'], bursts: ['bursts', 'warn'],
  effective: ['effective', 'good'], never_binding: ['never binding', 'faint'], unclear: ['unclear', 'faint'],
};
const WHO = { one: 'one caller', few: 'a few callers', many: 'many callers' };

// The words of a verdict and their tone. Who has the refused units is only shown if it decides what to do.
export function verdict({ verdict: name, who, rule }) {
  if (!name) return ['not watched', 'faint'];
  const [text, tone] = VERDICTS[name];
  if (name !== 'above_rate' && name !== 'bursts' || !WHO[who] || isShared(rule)) return [text, tone];
  return [`${text} (${WHO[who]})`, name === 'above_rate' && who === 'many' ? 'bad' : tone];
}

// A key or a value that could be taken for something else is in double quotes, as in the path of a rule.
const quoted = (text, isUnclear) => (isUnclear || text.startsWith('"') || text.includes(' >') ? `"${text.replace(/[\\"]/g, '\\$&')}"` : text);

// An entry as text: user_id=7, or "a=b"=c.
export const entryText = (key, value) => `${quoted(key, key.includes('='))}=${quoted(value, false)}`;

// Reads a key or a value, and returns it with the rest of the text.
function pathPart(text, ends) {
  const inQuotes = /^"((?:[^"\\]|\\.)*)"/s.exec(text);
  if (inQuotes) return [inQuotes[1].replace(/\\(.)/gs, '$1'), text.slice(inQuotes[0].length)];
  const at = text.search(ends);
  return [text.slice(0, at), text.slice(at)];
}

// The levels of a path, each with its text: "path=/login > user" is [["path", "/login", "path=/login"], ["user", null, "user"]].
export function pathLevels(path) {
  const levels = [];
  for (let text = path; ;) {
    const [key, afterKey] = pathPart(text, /=| > |$/);
    const [value, rest] = afterKey.startsWith('=') ? pathPart(afterKey.slice(1), / > |$/) : [null, afterKey];
    levels.push([key, value, text.slice(0, text.length - rest.length)]);
    if (!rest.startsWith(' > ')) return levels;
    text = rest.slice(3);
  }
}

// The entries of a path: "path=/login > user" is [["path", "/login"], ["user", null]].
export const pathEntries = (path) => pathLevels(path).map(([key, value]) => [key, value]);

const isFixed = ([key, value]) => value !== null && !`${key}${value}`.includes('*');

// A rule that fixes all of its entries counts all requests as one caller, who can be anybody.
export const isShared = (rule) => pathEntries(rule).every(isFixed);

// What a limit is called: its name, or the path of its rule. Many limits without a name can have one size.
export const titleOf = ({ name, rule }) => name ?? rule;

// The same in a sentence, where the size tells the limits of one rule apart.
export const nameOf = ({ name, rule, label }) => name ?? `${rule} (${label})`;

// The entries of a caller of a rule. Null if its name does not say them for certain.
export function callerEntries(name, path) {
  // A server cuts long values, and at last a name of 64 bytes or of a few less.
  if (!name || name.includes('…') || new TextEncoder().encode(name).length > 60) return null;
  // A name has only entries that the rule does not fix, or all entries if the rule fixes all.
  const entries = pathEntries(path);
  const all = entries.every(isFixed);
  const shown = all ? entries : entries.filter((entry) => !isFixed(entry));
  const parts = name.split(', ');
  if (parts.length !== shown.length || !parts.every((part, index) => part.startsWith(`${shown[index][0]}=`))) return null;
  return entries.map((entry) => (isFixed(entry) && !all ? entry : [entry[0], parts.shift().slice(entry[0].length + 1)]));
}
