/** A small, real Kafka broker for tests. */

export interface StartOptions {
  /** Settings of the broker, e.g. `{ 'num.partitions': 3 }`; `minibroker settings` lists them. */
  settings?: Record<string, string | number | boolean>;
  /** Address for clients; by default a free port of the loopback interface. */
  listener?: string;
  /** Further options of `minibroker start`. */
  args?: string[];
  /** The command of minibroker, if it is not to be searched. */
  command?: string[];
  /** Real milliseconds until the broker must be ready; by default 150000. */
  timeoutMs?: number;
}

export class Minibroker {
  private constructor();
  /** Start a broker on a free port, and wait until clients can connect. */
  static start(options?: StartOptions): Promise<Minibroker>;

  /** Addresses for clients, as kafkajs takes them. */
  readonly brokers: string[];
  /** The same addresses with commas between them. */
  readonly bootstrapServers: string;
  /** URL of the HTTP control API. */
  readonly controlUrl: string;
  readonly pid: number;

  readonly topics: Topics;
  readonly groups: Groups;
  readonly faults: Faults;
  readonly clock: Clock;
  readonly journal: Journal;

  /** Stop the broker, and wait until it has ended; a second call does nothing. */
  stop(): Promise<void>;
  /** The same as `stop()`, for `await using`. */
  [Symbol.asyncDispose](): Promise<void>;
  /** The end of what the broker has written to its standard error. */
  log(): string;
  /** Delete all topics, groups and offsets; clients stay connected. */
  reset(): Promise<void>;
  /** Send a request to the control API: `call('GET', ['topics', 'orders'])`. */
  call(
    method: 'GET' | 'POST' | 'DELETE',
    path: string[],
    body?: object,
    query?: Record<string, unknown>,
  ): Promise<any>;
}

/** A call that the broker rejected, or a broker that did not start. */
export class MinibrokerError extends Error {
  /** Kafka's name of the error where it has one. */
  readonly code: string;
}

export interface Topics {
  /** Create a topic; when this resolves, every connection knows it. */
  create(name: string, options?: { partitions?: number; configs?: Record<string, string> }): Promise<any>;
  delete(name: string): Promise<void>;
  get(name: string): Promise<any>;
  list(): Promise<any[]>;
  /** Produce messages: values, or objects with `key`, `value`, `headers`, `partition`. Resolves to their positions. */
  produce(name: string, messages: (string | null | NewMessage)[]): Promise<{ partition: number; offset: number }[]>;
  /** Return all messages, without waiting. */
  messages(name: string): Promise<Message[]>;
  /** Wait for messages, also for the topic, and return the first ones; reject after real milliseconds. */
  waitFor(name: string, count?: number, timeoutMs?: number): Promise<Message[]>;
}

export interface Groups {
  list(): Promise<any[]>;
  /** Wait for a group, by default until it is stable; reject after real milliseconds. */
  waitFor(id: string, conditions?: { state?: string; members?: number; lag?: number }, timeoutMs?: number): Promise<any>;
}

/** A key, value or header is text, or base64 for what is not UTF-8. */
export interface NewMessage {
  key?: string | null;
  key_base64?: string;
  value?: string | null;
  value_base64?: string;
  headers?: { key: string; value?: string | null; value_base64?: string | null }[];
  partition?: number;
  timestamp_ms?: number;
}

export interface Message {
  partition: number;
  offset: number;
  timestamp_ms: number;
  key: string | null;
  key_base64: string | null;
  value: string | null;
  value_base64: string | null;
  headers: { key: string; value: string | null; value_base64: string | null }[];
}

/** A fault rule: an action, selectors and how often; docs/reference/faults.md lists the fields. */
export interface FaultRule {
  action: string;
  api?: string;
  topic?: string;
  group?: string;
  client_id?: string;
  error?: string;
  first?: number;
  nth?: number;
  every?: number;
  delay_ms?: number;
  throttle_ms?: number;
  [field: string]: unknown;
}

export interface FaultView {
  id: string;
  matches: number;
  hits: number;
  held: number;
  [field: string]: unknown;
}

export interface Fault {
  readonly id: string;
  readonly rule: FaultRule;
  view(): Promise<FaultView>;
  /** Wait until the rule has fired so often; reject after real milliseconds. */
  wait(hits?: number, timeoutMs?: number): Promise<FaultView>;
  /** Release what the rule holds, and return how many. */
  release(): Promise<number>;
  remove(): Promise<void>;
}

export interface Faults {
  /** Add a rule; when this resolves, every connection obeys it. */
  add(rule: FaultRule): Promise<Fault>;
  list(): Promise<FaultView[]>;
  /** Remove all rules. */
  clear(): Promise<void>;
}

export interface ClockView {
  now: number;
  wall_ms: number;
  offset_ms: number;
  rate: number;
  frozen: boolean;
}

export interface Clock {
  get(): Promise<ClockView>;
  /** Advance the broker's clock: all its clients see the time pass. */
  advance(ms: number): Promise<ClockView>;
  /** Stop the clock, or with `false` let it run. */
  freeze(frozen?: boolean): Promise<ClockView>;
}

/** Conditions on entries of the journal; all given ones hold. */
export interface EntryConditions {
  kind?: string;
  api?: string;
  client_id?: string;
  topic?: string;
  group?: string;
  error?: string;
  decode?: boolean;
  [condition: string]: unknown;
}

export interface Entry {
  sequence: number;
  kind: string;
  api: string | null;
  client_id: string | null;
  details: Record<string, unknown>;
  body?: Record<string, unknown> | null;
  [field: string]: unknown;
}

export interface Journal {
  /** Record what clients and the broker do, from now on. */
  start(): Promise<void>;
  stop(): Promise<void>;
  /** All matching entries since the start, oldest first. */
  entries(conditions?: EntryConditions): Promise<Entry[]>;
  /** The first matching entry since the start; wait for it, and reject after real milliseconds. */
  waitFor(conditions?: EntryConditions, timeoutMs?: number): Promise<Entry>;
}
