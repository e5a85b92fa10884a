// Starts headless Chromium for the tests, so that it cannot reach another machine.
//
// All traffic of the browser goes to a proxy on loopback, which serves nothing and records the requested addresses.

import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { join } from 'node:path';

// How long a test waits for anything in a page. On a machine whose cores are all busy, a page alone can need more than a minute.
export const DEADLINE_MS = 300_000;

// A proxy that serves nothing. `asked` gets the address of each request.
async function startProxy(asked) {
  const proxy = createServer((request, response) => {
    asked.push(request.url);
    response.writeHead(404).end();
  });
  for (const kind of ['connect', 'upgrade']) {
    proxy.on(kind, (request, socket) => {
      asked.push(request.url);
      // The browser may hang up first, and a failed socket without a listener ends this program.
      socket.on('error', () => {});
      socket.end('HTTP/1.1 404 Not Found\r\n\r\n');
    });
  }
  await new Promise((ready) => proxy.listen(0, '127.0.0.1', ready));
  return proxy;
}

// Starts a browser. `tools` is the folder in which scripts/setup.sh installed puppeteer-core and axe-core. If `loopback` is true,
// the browser reaches servers on loopback, and all names that end with .example are names of this machine.
export async function launch(tools, chromium, loopback) {
  const require = createRequire(join(tools, 'package.json'));
  const puppeteer = require('puppeteer-core');
  const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
  const asked = [];
  const proxy = await startProxy(asked);
  // Chromium refuses to run its sandbox as root.
  const asRoot = process.getuid() === 0 ? ['--no-sandbox'] : [];
  const names = ['--proxy-bypass-list=*.example', '--host-resolver-rules=MAP *.example 127.0.0.1'];
  const bypass = loopback ? names : ['--proxy-bypass-list=<-loopback>'];
  const browser = await puppeteer.launch({
    executablePath: chromium,
    // Chromium ends when this pipe is closed, so it also ends if this program is killed.
    pipe: true,
    // A busy machine needs longer than the defaults.
    timeout: DEADLINE_MS,
    protocolTimeout: DEADLINE_MS,
    args: [...asRoot, '--disable-dev-shm-usage', `--proxy-server=http://127.0.0.1:${proxy.address().port}`, ...bypass],
  });
  const close = async () => {
    await browser.close();
    proxy.close();
  };
  return { browser, axe, asked, close };
}

const MOST_NODES_SHOWN = 5;

export function violationTexts(way, results) {
  return results.violations.map(({ id, help, nodes }) => {
    const places = nodes.slice(0, MOST_NODES_SHOWN).map(({ target, any }) => [target.join(' '), ...any.map((check) => check.message)].join(': '));
    return `${way}: ${id}: ${help} (${nodes.length}): ${places.join(' | ')}`;
  });
}
