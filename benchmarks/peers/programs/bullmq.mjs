// BullMQ on Node: a job with a delay. It speaks the lines of protocol.py.
import { closeSync, openSync, writeSync } from "node:fs";
import { createInterface } from "node:readline";
import { performance } from "node:perf_hooks";
import { Queue, Worker } from "bullmq";
import { Redis } from "ioredis";

const BODY = "x".repeat(200);
const EACH = 50;
// A worker waits for messages for as long as it takes, so no request may give up.
const connection = new Redis(process.env.PEER_STORE, { maxRetriesPerRequest: null });
const settings = JSON.parse(process.env.PEER_SETTINGS ?? "{}");

const now = () => Date.now() / 1000;
const sleep = (seconds) => new Promise((done) => setTimeout(done, Math.max(0, seconds) * 1000));

function work() {
  const log = openSync(process.env.PEER_LOG, "a");
  const worker = new Worker(
    "work",
    async (job) => {
      const [number, due, seconds] = job.data;
      if (seconds) {
        closeSync(openSync(`${process.env.PEER_LOG}.begun`, "a"));
        await sleep(seconds);
      }
      writeSync(log, `${number} ${due} ${now()}\n`);
    },
    { connection, ...settings },
  );
  worker.on("closed", () => closeSync(log));
}

const queue = process.argv[2] === "client" ? new Queue("work", { connection }) : null;
const delayOf = (due) => ({ delay: Math.max(0, Math.ceil((due - now()) * 1000)) });
const callOf = (number, due, seconds = 0) => [number, due, seconds, BODY];

async function putEach(calls) {
  const keys = [];
  for (const call of calls) keys.push((await queue.add("work", call, delayOf(call[1]))).id);
  return keys;
}

async function putList(calls) {
  const jobs = calls.map((call) => ({ name: "work", data: call, opts: delayOf(call[1]) }));
  return (await queue.addBulk(jobs)).map((job) => job.id);
}

async function putFast(calls) {
  const keys = [];
  for (let start = 0; start < calls.length; start += 500)
    keys.push(...(await putList(calls.slice(start, start + 500))));
  return keys;
}

const range = (count) => Array.from({ length: count }, (_, number) => number);

const commands = {
  async put({ seconds, size, delay, limit }) {
    const put = size === 1 ? putEach : putList;
    const chunk = size === 1 ? EACH : size;
    const begin = performance.now();
    let count = 0;
    let used = 0;
    while (used < seconds && count < limit) {
      const due = now() + delay;
      const numbers = range(Math.min(chunk, limit - count)).map((index) => count + index);
      await put(numbers.map((number) => callOf(number, due)));
      count += numbers.length;
      used = (performance.now() - begin) / 1000;
    }
    return { count, seconds: used };
  },
  async put_at({ first, count, due, step = 0, seconds = 0 }) {
    await putFast(range(count).map((n) => callOf(first + n, due + n * step, seconds)));
    return { ended: now() };
  },
  async pace({ rate, count }) {
    const begin = now();
    for (const number of range(count)) {
      await sleep(begin + number / rate - now());
      await putEach([callOf(number, now() + 1 + ((number * 7919) % 4000) / 1000)]);
    }
    return { ended: now() };
  },
  async cancel({ seconds, count }) {
    const due = now() + 3600;
    const [first] = await putFast([callOf(0, due)]);
    await queue.remove(first);
    const keys = await putFast(range(count).map((number) => callOf(number, due)));
    const begin = performance.now();
    let done = 0;
    let used = 0;
    while (used < seconds && done < keys.length) {
      const part = keys.slice(done, done + EACH);
      for (const key of part) await queue.remove(key);
      done += part.length;
      used = (performance.now() - begin) / 1000;
    }
    return { count: done, seconds: used };
  },
};

async function answer() {
  for await (const line of createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    let reply;
    try {
      reply = await commands[command.do](command);
    } catch (error) {
      reply = { error: `${error}` };
    }
    process.stdout.write(`${JSON.stringify(reply)}\n`);
  }
}

if (process.argv[2] === "worker") work();
else await answer();
