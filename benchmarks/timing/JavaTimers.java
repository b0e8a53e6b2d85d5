// The work of operations.py on Java's own timers. Prints "name<TAB>value<TAB>unit".
// Run by `python -m benchmarks timing-java`, with javac and java 11 or later.

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.Timer;
import java.util.TimerTask;
import java.util.concurrent.DelayQueue;
import java.util.concurrent.Delayed;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

public class JavaTimers {
    static final int MILLION = 1_000_000;
    static final int BATCH = 100_000;
    static final int RATE = 10_000;
    static final int SECONDS = 2;
    static volatile int fired;

    static final class Item implements Delayed {
        final long due;

        Item(long due) { this.due = due; }

        public long getDelay(TimeUnit unit) {
            return unit.convert(due - System.nanoTime(), TimeUnit.NANOSECONDS);
        }

        public int compareTo(Delayed other) { return Long.compare(due, ((Item) other).due); }
    }

    interface Peer {
        Object schedule(long nanos);

        void cancel(Object handle);

        default void stop() {}
    }

    static final class Queue implements Peer {
        final DelayQueue<Item> queue = new DelayQueue<>();

        public Object schedule(long nanos) {
            Item item = new Item(System.nanoTime() + nanos);
            queue.put(item);
            return item;
        }

        public void cancel(Object handle) { queue.remove(handle); } // O(n)
    }

    static final class Pool implements Peer {
        final ScheduledThreadPoolExecutor pool = new ScheduledThreadPoolExecutor(1);

        Pool() { pool.setRemoveOnCancelPolicy(true); }

        public Object schedule(long nanos) {
            return pool.schedule(() -> { fired++; }, nanos, TimeUnit.NANOSECONDS);
        }

        public void cancel(Object handle) { ((Future<?>) handle).cancel(false); }

        public void stop() { pool.shutdownNow(); }
    }

    static final class Thread1 implements Peer {
        final Timer timer = new Timer(true);

        public Object schedule(long nanos) {
            TimerTask task = new TimerTask() {
                public void run() { fired++; }
            };
            timer.schedule(task, nanos / 1_000_000);
            return task;
        }

        public void cancel(Object handle) { ((TimerTask) handle).cancel(); } // stays in the heap

        public void stop() { timer.cancel(); }
    }

    static long delay(Random random) { return 60_000_000_000L + (long) (3540e9 * random.nextDouble()); }

    static void say(String name, double value, String unit) {
        System.out.printf(java.util.Locale.ROOT, "%s\t%.3f\t%s%n", name, value, unit);
    }

    static double median(double[] values) {
        Arrays.sort(values);
        return values[values.length / 2];
    }

    static long used() {
        System.gc();
        return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
    }

    static void operations(String name, Peer peer, int cancels) {
        Random random = new Random(1);
        long before = used();
        for (int i = 0; i < MILLION; i++) peer.schedule(delay(random));
        say(name + ": bytes a timer", (used() - before) / (double) MILLION, "B");
        double[] scheduling = new double[5];
        double[] cancelling = new double[5];
        for (int round = 0; round < 5; round++) {
            List<Object> handles = new ArrayList<>(BATCH);
            long start = System.nanoTime();
            for (int i = 0; i < BATCH; i++) handles.add(peer.schedule(delay(random)));
            scheduling[round] = (System.nanoTime() - start) / (double) BATCH;
            Collections.shuffle(handles, random);
            start = System.nanoTime();
            for (int i = 0; i < cancels; i++) peer.cancel(handles.get(i));
            cancelling[round] = (System.nanoTime() - start) / (double) cancels;
        }
        say(name + ": schedule at 1,000,000", median(scheduling), "ns");
        say(name + ": cancel at 1,000,000", median(cancelling), "ns");
        peer.stop();
    }

    static void take() throws InterruptedException {
        DelayQueue<Item> queue = new DelayQueue<>();
        Random random = new Random(1);
        long now = System.nanoTime();
        for (int i = 0; i < MILLION; i++) queue.put(new Item(now - random.nextInt(1_000_000_000)));
        long start = System.nanoTime();
        for (int i = 0; i < MILLION; i++) queue.take();
        say("DelayQueue: take of a due head", (System.nanoTime() - start) / (double) MILLION, "ns");
    }

    static void lateness() throws InterruptedException {
        ScheduledThreadPoolExecutor pool = new ScheduledThreadPoolExecutor(1);
        long[] late = new long[RATE * SECONDS];
        int[] count = {0};
        Random random = new Random(1);
        long begin = System.nanoTime() + 1_500_000_000L;
        for (int i = 0; i < late.length; i++) {
            long due = begin + (long) (SECONDS * 1e9 * random.nextDouble());
            pool.schedule(() -> { late[count[0]++] = System.nanoTime() - due; },
                due - System.nanoTime(), TimeUnit.NANOSECONDS);
        }
        pool.shutdown();
        pool.awaitTermination(30, TimeUnit.SECONDS);
        Arrays.sort(late);
        say("ScheduledThreadPoolExecutor: lateness p50", late[late.length / 2] / 1e6, "ms");
        say("ScheduledThreadPoolExecutor: lateness p99", late[late.length * 99 / 100] / 1e6, "ms");
    }

    public static void main(String[] args) throws InterruptedException {
        operations("ScheduledThreadPoolExecutor", new Pool(), BATCH);
        operations("DelayQueue", new Queue(), 200);
        operations("Timer", new Thread1(), BATCH);
        take();
        lateness();
        System.exit(0);
    }
}
