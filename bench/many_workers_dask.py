#!/usr/bin/python3
"""bench_many_workers with Dask (Debian: python3-distributed): what a scheduler and client cost under N workers of one thread.

  many_workers_dask.py WORKERS ITEMS_PER_WORKER SECONDS_PER_ITEM

As in many_workers.cpp the workers share processes (64 each) and an item is a pause, so that many fit on a small machine; scheduler and client,
together the counterpart of our driver, are this process. No encryption, no dashboard.
"""
import asyncio, logging, multiprocessing, resource, sys, time

import dask, distributed

PER_PROCESS = 64
logging.getLogger("distributed").setLevel(logging.ERROR)


def be_workers(address, count, first):
    async def run():
        workers = [distributed.Worker(address, nthreads=1, name=first + i, dashboard=False, memory_limit=0) for i in range(count)]
        await asyncio.gather(*workers)
        await asyncio.gather(*(worker.finished() for worker in workers))

    asyncio.run(run())


def item(index, seconds):
    time.sleep(seconds)
    return index


async def drive(n, items_each, seconds):
    begin = time.monotonic()
    async with distributed.Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        spawn = multiprocessing.get_context("spawn")
        hosts = [spawn.Process(target=be_workers, args=(scheduler.address, min(PER_PROCESS, n - i), i), daemon=True) for i in range(0, n, PER_PROCESS)]
        for host in hosts:
            host.start()
        async with distributed.Client(scheduler.address, asynchronous=True) as client:
            await client.wait_for_workers(n)
            futures = client.map(item, range(n * items_each), seconds=seconds, pure=False)
            first = cpu_at_first = None
            async for _ in distributed.as_completed(futures):
                if first is None:
                    first, cpu_at_first = time.monotonic(), time.process_time()
            last, cpu = time.monotonic(), time.process_time() - cpu_at_first
            print("Dask %s: %d workers, %d items of %g s: first result after %.1f s (%.1f s of driver CPU), then %.1f s (%.0f items/s), driver CPU %.2f s = %.1f %%, "
                  "driver memory %d MB, workers at the end %d" % (
                      distributed.__version__, n, n * items_each, seconds, first - begin, cpu_at_first, last - first, n * items_each / (last - first), cpu,
                      100 * cpu / (last - first), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, len(scheduler.workers)), flush=True)
        for host in hosts:
            host.terminate()


if __name__ == "__main__":
    dask.config.set({"distributed.worker.daemon": False})
    asyncio.run(drive(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
