'use strict';

const { spawn } = require('node:child_process');
const { Clock, Faults, Groups, Journal, Topics } = require('./control.js');
const { findCommand } = require('./find.js');

const START_MS_MAX = 150_000; // Longer than the broker allows itself, so that it reports the reason.
const STOP_MS_MAX = 15_000;
const LOG_CHARACTERS_MAX = 65_536;

/** An error of the broker; `code` is Kafka's name of it where it has one. */
class MinibrokerError extends Error {
  constructor(message, code = 'MINIBROKER') {
    super(message);
    this.name = 'MinibrokerError';
    this.code = code;
  }
}

/** A running broker. It ends with `stop()`, and with this process at the latest. */
class Minibroker {
  #child;
  #exited;
  #log = '';
  #origin;
  #authorization;

  /** Start a broker on a free port, and wait until clients can connect. */
  static async start(options = {}) {
    const { settings = {}, listener = 'PLAINTEXT://127.0.0.1:0', args = [] } = options;
    const [program, ...first] = options.command ?? findCommand();
    const pairs = Object.entries(settings).flatMap(([name, value]) => ['--set', `${name}=${value}`]);
    const start = ['start', '--json', '--exit-with-parent', '--listener', listener];
    // The broker ends when its standard input does, however this process ends.
    const child = spawn(program, [...first, ...start, ...pairs, ...args], { stdio: 'pipe' });
    const broker = new Minibroker(child);
    await broker.#untilReady(options.timeoutMs ?? START_MS_MAX);
    return broker;
  }

  constructor(child) {
    this.#child = child;
    this.#exited = new Promise((resolve) => child.once('close', resolve));
    child.stderr.setEncoding('utf8').on('data', (text) => {
      this.#log = (this.#log + text).slice(-LOG_CHARACTERS_MAX);
    });
    child.stdin.on('error', () => {}); // The broker has ended by itself.
    this.topics = new Topics(this);
    this.groups = new Groups(this);
    this.faults = new Faults(this);
    this.clock = new Clock(this);
    this.journal = new Journal(this);
  }

  async #untilReady(timeoutMs) {
    let ready;
    try {
      ready = JSON.parse(await this.#firstLine(timeoutMs));
      if (ready.event !== 'ready') throw new MinibrokerError(`minibroker did not start: ${ready.message}`);
    } catch (error) {
      await this.stop();
      throw error;
    }
    const url = new URL(ready.control_url);
    const token = decodeURIComponent(url.password);
    this.#authorization = token ? { Authorization: `Bearer ${token}` } : {};
    url.username = url.password = '';
    this.#origin = url.origin;
    this.bootstrapServers = ready.bootstrap_servers;
    this.brokers = ready.bootstrap_servers.split(',');
    this.controlUrl = ready.control_url;
    this.pid = ready.pid;
    // A forgotten `stop()` does not keep this process from its end.
    for (const each of [this.#child, this.#child.stdin, this.#child.stdout, this.#child.stderr]) each.unref();
  }

  #firstLine(timeoutMs) {
    return new Promise((resolve, reject) => {
      let text = '';
      const fail = (why) => reject(new MinibrokerError(`minibroker did not start: ${why}\n${this.#log}`));
      const timer = setTimeout(fail, timeoutMs, `it was not ready after ${timeoutMs} ms`);
      this.#child.stdout.setEncoding('utf8').on('data', (chunk) => {
        text += chunk;
        if (text.includes('\n')) resolve(text.slice(0, text.indexOf('\n')));
      });
      this.#child.once('error', (error) => fail(error.message));
      this.#exited.then((status) => fail(`it ended with status ${status}`));
      this.#exited.finally(() => clearTimeout(timer));
      this.#child.stdout.once('data', () => clearTimeout(timer));
    });
  }

  /** Stop the broker, and wait until it has ended; a second call does nothing. */
  async stop() {
    this.#child.ref();
    this.#child.stdin.end();
    const timer = setTimeout(() => this.#child.kill('SIGKILL'), STOP_MS_MAX);
    await this.#exited;
    clearTimeout(timer);
  }

  /** The end of what the broker has written to its standard error. */
  log() {
    return this.#log;
  }

  /** Delete all topics, groups and offsets; clients stay connected. */
  async reset() {
    await this.call('POST', ['reset']);
  }

  /** Send a request to the control API: `call('GET', ['topics', 'a/b'])`. */
  async call(method, path, body, query = {}) {
    const given = Object.entries(query).filter(([, value]) => value !== undefined);
    const url = `${this.#origin}/v1/${path.map(encodeURIComponent).join('/')}?${new URLSearchParams(given)}`;
    const headers = { 'Content-Type': 'application/json', ...this.#authorization };
    const response = await fetch(url, { method, headers, body: body && JSON.stringify(body) });
    const text = await response.text();
    const answer = text ? JSON.parse(text) : {};
    if (response.ok) return answer;
    const { code, message, hint = '' } = answer.error ?? { code: `${response.status}`, message: text };
    throw new MinibrokerError(`${code}: ${message} ${hint}`.trim(), code);
  }
}

Minibroker.prototype[Symbol.asyncDispose ?? Symbol('asyncDispose')] = Minibroker.prototype.stop;

module.exports = { Minibroker, MinibrokerError };
