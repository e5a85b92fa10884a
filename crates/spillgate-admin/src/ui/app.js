// Begins: follows the server, and shows the view that the address names.

import { forgetToken, hasToken } from './api.js';
import * as blocks from './blocks.js';
import { byId, fillOnce, h, say, setAttribute, setText } from './dom.js';
import * as explain from './explain.js';
import { clock, durationMs, left, time, zone } from './format.js';
import * as limit from './limit.js';
import * as overview from './overview.js';
import * as reloads from './reloads.js';
import { drawWith, follow, isStale, nowMs, state } from './state.js';

const VIEWS = { '': overview, limit, explain, blocks, reloads };
const main = byId('main');
const live = byId('live');
let view = null;

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function route(isFirst) {
  const [name, ...parts] = location.hash.replace(/^#\/?/, '').split('/').map(decode);
  const module = Object.hasOwn(VIEWS, name) ? VIEWS[name] : overview;
  view?.close?.();
  view = module.open(parts);
  main.replaceChildren(view.element);
  document.title = `${view.title} – spillgate ${location.host}`;
  for (const link of document.querySelectorAll('nav a')) {
    setAttribute(link, 'aria-current', link.dataset.view === (name || 'overview') ? 'page' : null);
  }
  draw();
  if (isFirst !== true) {
    scrollTo(0, 0);
    const heading = main.querySelector('h1');
    heading.tabIndex = -1;
    if (!main.contains(document.activeElement)) heading.focus({ preventScroll: true });
  }
}

let [said, version] = ['starting', null];

function drawLive() {
  const stale = isStale();
  const age = performance.now() - state.heard;
  const heardAt = Date.now() - age;
  const isStarting = state.connection === 'starting';
  const now = stale && !isStarting ? 'stale' : state.connection;
  const texts = { starting: 'Connecting', live: `Live ${clock(state.at_ms)}`, polling: `Figures of ${clock(state.at_ms)}`, away: 'Not connected', stale: `No data since ${clock(heardAt)}` };
  setText(live, texts[now]);
  setAttribute(live, 'class', `live ${{ live: 'fresh', stale: 'bad', away: 'bad' }[now] ?? ''}`);
  setAttribute(main, 'class', stale ? 'stale' : null);
  if (now !== said && !isStarting) {
    say({ live: 'The figures are live.', stale: 'The server is away. The figures are old.', away: `Not connected. ${state.why}` }[now] ?? '');
    said = now;
  }
  return { stale: now === 'stale', age, heardAt };
}

function notices({ stale, age, heardAt }) {
  const list = [];
  const add = (...notice) => list.push(notice);
  const { overview } = state;
  if (stale) add('bad', `No data since ${clock(heardAt)}, ${durationMs(Math.floor(age / 1000) * 1000)}. All figures are old. ${state.why}`);
  else if (state.connection === 'away' && !overview) add('bad', `${state.why} The page tries again.`);
  else if (state.connection === 'live' && state.unread) add('warn', `Charts, verdicts, blocks and shadows may be old: ${state.unread}`);
  else if (state.connection === 'polling') add('warn', `The figures come only now and then: ${state.why}`);
  if (overview?.server.shadow) add('warn', 'This server runs in shadow (a setting): it refuses nothing.');
  if (state.shadows?.all) add('warn', `All rules are in shadow until ${time(state.shadows.all.until_ms)}: no limit refuses a request.`);
  if (state.store?.up === false) add('bad', 'The shared store does not answer. Each limit decides as its on_store_failure says.');
  if (overview && !overview.reload_successful) add('bad', 'The last reload of the rules failed. The earlier rules are still in use. ', '#/reloads', 'See why');
  version ??= overview?.server.version;
  if (overview && overview.server.version !== version) add('warn', 'The server has another version now: load this page again.');
  if (overview?.limits_left_out > 0) add('warn', `${overview.limits_left_out} limits are not shown: the page has only the first ${state.limits.length}.`);
  const box = byId('notices');
  // The first text changes each second, so its element is kept.
  fillOnce(box, list.map(([tone, , href]) => [tone, href]), () => list.map(([tone, , href, link]) => h(`p.notice.${tone}`, h('span'), href && h('a', { href }, link))));
  list.forEach(([, text], index) => setText(box.children[index].firstChild, text));
}

function drawFooter() {
  const { overview: seen } = state;
  const footer = byId('footer');
  fillOnce(footer, [seen?.server, hasToken()], () => [
    h('p', seen && `spillgate ${seen.server.version}, running since ${time(seen.server.started_ms)}, server ${seen.server.id.slice(0, 8)}. `, `Times are ${zone()}. `,
      // A browser sends no token with a link.
      !hasToken() && [h('a', { href: '/metrics' }, 'Metrics'), ' ', h('a', { href: '/openapi.json' }, 'API')]),
    hasToken() && h('button.quiet', { type: 'button', onclick: forgetToken }, 'Forget token')]);
}

function draw() {
  notices(drawLive());
  drawFooter();
  view?.update?.();
  main.querySelectorAll('[data-until]').forEach((node) => setText(node, left(node.dataset.until - nowMs())));
}

// A fleet has a page for each server, so each page says which server it shows.
setText(byId('server'), location.host);
setAttribute(byId('server'), 'title', location.host);
addEventListener('hashchange', route);
byId('skip').addEventListener('click', (event) => {
  event.preventDefault();
  main.focus();
});
drawWith(draw);
route(true);
follow();
