// What the page knows of the server: the overview, which is read now and then, and the totals, which arrive each second.

import { events, get, Problem } from './api.js';
import { pathEntries } from './format.js';

// Rates are those of the last seconds.
const RATE_MS = 5_000;
const SAMPLE_MS = 250;
// Without news for this long, the figures are marked as old.
const STALE_MS = 5_000;
// Without any byte for this long, the connection is given up.
const SILENT_MS = 25_000;
const PAUSE_MS = [1_000, 2_000, 4_000, 8_000, 15_000];
// How often the view is drawn, however many ticks arrive.
const DRAW_MS = 500;
// A server with many limits or blocks is asked less often.
const READ_MS = 10_000;
const READ_MS_MAX = 60_000;

export const state = {
  // 'starting', 'live', 'polling' (no event stream is free), or 'away'.
  connection: 'starting',
  // Why the server is away, and why the overview could not be read, as texts.
  why: '',
  unread: '',
  // The time of the last figures, by both clocks.
  at_ms: 0,
  heard: 0,
  overview: null,
  requests: null,
  blocks: null,
  shadows: null,
  limits: [],
};

let draw = () => {};
let drawn = 0;
let drawing = null;

export function drawWith(run) {
  draw = run;
}

export function changed() {
  if (document.hidden) return;
  drawing ??= setTimeout(() => {
    drawing = null;
    drawn = performance.now();
    forgetEnded();
    draw();
  }, Math.max(0, drawn + DRAW_MS - performance.now()));
}

export function isStale() {
  const after = state.connection === 'polling' ? READ_MS_MAX : STALE_MS;
  return state.heard > 0 && (state.connection === 'away' || performance.now() - state.heard > after);
}

// The time by the server's clock.
export const nowMs = () => state.at_ms + performance.now() - state.heard;

// Forgets blocks and shadow switches that have ended.
function forgetEnded() {
  const isOn = (one) => one?.until_ms > nowMs();
  const { blocks, shadows } = state;
  if (!blocks) return;
  blocks.blocks = blocks.blocks.filter(isOn);
  shadows.rules = shadows.rules.filter(isOn);
  if (!isOn(shadows.all)) shadows.all = null;
}

// A total that grows, and how fast. After a restart of the server it is lower.
class Total {
  constructor() {
    this.samples = [];
    this.value = 0;
  }

  set(at, value) {
    const before = this.samples.at(-1)?.at ?? at;
    // After a gap, the samples say nothing about now.
    const isGap = at - before > 2 * RATE_MS && state.connection !== 'polling';
    if (value < this.value || at < before || isGap) this.samples = [];
    this.value = value;
    const last = this.samples.at(-1);
    if (!last || at - last.at >= SAMPLE_MS) this.samples.push({ at, value });
    while (this.samples.length > 2 && this.samples[1].at <= at - RATE_MS) this.samples.shift();
  }

  // The rate at the time `at`. Null if it is not known yet.
  rate(at) {
    const first = this.samples[0];
    const ms = Math.max(at - (first?.at ?? at), 0);
    return ms < 1_500 ? null : ((this.value - first.value) * 1000) / ms;
  }
}

// In the order of a tick.
export const FIELDS = ['allowed', 'refused', 'near', 'shadow_refused', 'soft_over'];

function totalsOf(fields, at, values, known) {
  const totals = known ?? Object.fromEntries(fields.map((field) => [field, new Total()]));
  for (const field of fields) totals[field].set(at, values[field]);
  return totals;
}

export function keyOf(limit) {
  // A shadow switch changes the binding of a limit, and the limit stays the same.
  const options = { ...limit.options, binding: null };
  return JSON.stringify([limit.domain, limit.rule, limit.name, limit.algorithm, limit.limit, limit.window_ns, limit.capacity, options, limit.line]);
}

// The rate of fields of a limit or of all requests: of the last seconds, or of the last step of the history.
export function rateOf(item, ...fields) {
  const live = fields.map((field) => item.totals[field].rate(state.at_ms));
  if (!live.includes(null)) return sum(live);
  const last = fields.map((field) => item.history[field]?.at(-1));
  return last.includes(undefined) ? null : (sum(last) * 1000) / state.overview.step_ms;
}

export const perSecondOf = (counts) => counts.map((count) => (count * 1000) / state.overview.step_ms);

// What a limit allowed, with what passed only because of a soft share.
export const passedRate = (limit) => rateOf(limit, 'allowed', 'soft_over');

// What a limit refused, or would have refused if it did not run in shadow.
export const overRate = (limit) => rateOf(limit, 'refused', 'shadow_refused');

export const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

// Whether requests over the limit pass, and why: 'file', 'server', 'switch' or null.
export function shadowOf(limit) {
  if (state.overview?.server.shadow) return { by: 'server' };
  const rule = state.shadows?.rules.filter((rule) => rule.domain === limit.domain && rule.path === limit.rule).sort((a, b) => b.until_ms - a.until_ms)[0];
  if (state.shadows?.all) return { by: 'all', ...state.shadows.all };
  if (rule) return { by: 'switch', ...rule };
  return limit.options.binding === 'shadow' ? { by: 'file' } : null;
}

const isIn = (block, domain) => block.domain === null || block.domain === domain;

// The blocks that refuse requests of the rule of a limit: those on an entry that its path has, or that its `insight_by` names.
export function blocksOf({ domain, rule }, by) {
  const fits = ([key, value], block) => fitsPattern(key, block.key) && (value === null || fitsPattern(value, block.value));
  const entries = pathEntries(rule);
  return (state.blocks?.blocks ?? []).filter((block) => isIn(block, domain) && (block.key === by || entries.some((entry) => fits(entry, block))));
}

// The block that refuses requests with these entries for the longest time.
export function blockOn(domain, entries) {
  const on = (state.blocks?.blocks ?? []).filter((block) => isIn(block, domain) && entries.some(([key, value]) => key === block.key && value === block.value));
  return on.sort((a, b) => b.until_ms - a.until_ms)[0];
}

// Whether a text fits a text of a rule, in which a star stands for any text.
function fitsPattern(pattern, text) {
  const [first, ...parts] = pattern.split('*');
  if (!parts.length) return pattern === text;
  const last = parts.pop();
  if (text.length < first.length + last.length || !text.startsWith(first) || !text.endsWith(last)) return false;
  const end = text.length - last.length;
  let at = first.length;
  for (const part of parts) {
    const found = text.indexOf(part, at);
    if (found < 0 || found + part.length > end) return false;
    at = found + part.length;
  }
  return true;
}

export function take(overview) {
  const known = new Map(state.limits.map((limit) => [keyOf(limit), limit.totals]));
  const isSame = state.overview?.server.id === overview.server.id;
  // An overview can be older than the last tick. Then its totals are old.
  const isLate = isSame && state.connection === 'live' && overview.at_ms < state.at_ms;
  const numbers = new Map();
  state.limits = overview.limits.map((limit) => {
    const place = `${limit.domain}\0${limit.rule}`;
    const number = numbers.get(place) ?? 0;
    numbers.set(place, number + 1);
    const own = isSame ? known.get(keyOf(limit)) : undefined;
    const seen = isLate && own ? Object.fromEntries(FIELDS.map((field) => [field, Math.max(limit[field], own[field].value)])) : limit;
    const totals = totalsOf(FIELDS, isLate ? state.at_ms : overview.at_ms, seen, own);
    const { history } = limit;
    history.passed = history.allowed.map((value, index) => value + history.soft_over[index]);
    history.over = history.refused.map((value, index) => value + history.shadow_refused[index]);
    return { ...limit, number, totals };
  });
  if (!isLate) takeServer(overview, isSame);
  state.overview = overview;
  state.requests.history = overview.requests.history;
}

function takeServer(news, isSame) {
  const known = isSame ? state.requests?.totals : undefined;
  state.requests = { ...state.requests, totals: totalsOf(['allowed', 'refused', 'blocked', 'errors'], news.at_ms, news.requests, known) };
  state.store = news.store;
  state.memory = news.memory;
  state.at_ms = news.at_ms;
  state.heard = performance.now();
}

export function takeTick(tick) {
  if (!state.overview) return;
  // With other rules, the numbers of the limits are others.
  const isCurrent = tick.changes === state.overview.changes;
  // A limit that is not in the tick has not changed.
  const news = new Map(tick.limits.map(([id, ...values]) => [id, values]));
  if (isCurrent) state.limits.forEach(({ totals }, id) => FIELDS.forEach((field, index) => totals[field].set(tick.at_ms, news.get(id)?.[index] ?? totals[field].value)));
  takeServer(tick, true);
  if (!isCurrent) read().catch(() => {});
  changed();
}

let reading = null;
let again = false;
let nextRead = null;

// Reads all but the events. Calls that come meanwhile lead to one more reading.
export function read() {
  if (reading) {
    again = true;
    return reading;
  }
  reading = readAll().finally(() => {
    reading = null;
    if (again) {
      again = false;
      read().catch(() => {});
    }
  });
  return reading;
}

async function readAll() {
  clearTimeout(nextRead);
  try {
    const [overview, blocks, shadows] = await Promise.all([get('/overview'), get('/blocks'), get('/shadows')]);
    take(overview);
    Object.assign(state, { blocks, shadows, unread: '' });
    changed();
  } catch (error) {
    state.unread = error.detail ?? 'The answer cannot be read.';
    throw error;
  } finally {
    const pause = Math.min(READ_MS_MAX, READ_MS * Math.ceil((1 + state.limits.length + (state.blocks?.blocks.length ?? 0)) / 100));
    nextRead = setTimeout(() => (document.hidden || state.connection === 'away' ? undefined : read().catch(() => {})), pause);
  }
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

function become(connection, why = '') {
  Object.assign(state, { connection, why });
  changed();
}

// Follows the server for ever: reads the overview, then the events until they end, and begins again. A browser has only a few
// connections to a server, so a hidden page keeps none.
export async function follow() {
  setInterval(changed, 1_000);
  for (let failures = 0; ; failures += 1) {
    while (document.hidden) await new Promise((done) => document.addEventListener('visibilitychange', done, { once: true }));
    const stream = new AbortController();
    let heard = Infinity;
    const watch = setInterval(() => performance.now() - heard > SILENT_MS && stream.abort(), 1_000);
    const hide = () => stream.abort('hidden');
    document.addEventListener('visibilitychange', hide, { once: true });
    try {
      await read();
      heard = performance.now();
      await events((name, data) => {
        if (name === 'tick') {
          failures = -1;
          if (state.connection !== 'live') become('live');
          takeTick(data);
        } else if (name === 'changed') {
          read().catch(() => {});
        }
      }, () => { heard = performance.now(); }, stream.signal);
    } catch (error) {
      const isBusy = error instanceof Problem && (error.status === 503 || error.status === 429) && state.overview;
      if (stream.signal.reason !== 'hidden') become(isBusy ? 'polling' : 'away', error.detail ?? 'The connection to the server broke.');
    } finally {
      clearInterval(watch);
      document.removeEventListener('visibilitychange', hide);
      stream.abort();
    }
    if (stream.signal.reason === 'hidden') state.connection = 'starting';
    else await pause(PAUSE_MS[Math.max(0, Math.min(failures, PAUSE_MS.length - 1))]);
  }
}
