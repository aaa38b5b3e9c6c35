"""The scheduler through Python."""

import array
import ctypes
import os
import tempfile
import threading
import unittest
from typing import Any

import sluice
from sluice import ASK, Event, EventKind, Finish, Lookup, Mode, Namespace, Offer, Route, Scheduler, TransferKind

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]


def config(**parts: Any) -> "dict[str, Any]":
    base: "dict[str, Any]" = {"Cache": {"Blocks": 100}, "Scheduler": {"MaxModelLen": 256, "MaxNumSeqs": 8, "MaxBatchedTokens": 256}}
    for name, part in parts.items():
        base.setdefault(name, {}).update(part)
    return base


def step(s: Scheduler, now: int = 1, token: int = 7) -> "tuple[sluice.Plan, list[sluice.Output]]":
    plan = s.plan(now)
    return plan, s.apply(plan, [token] * sum(plan.samples))


class Steps(unittest.TestCase):
    def make(self, **parts: Any) -> Scheduler:
        s = Scheduler(config(**parts))
        self.addCleanup(s.close)
        return s

    def test_plan_and_apply(self) -> None:
        s = self.make()
        a = s.add("a", range(20), max_tokens=2)
        self.assertEqual((s.find("a"), s.find("b"), s.state(a)), (a, None, sluice.RequestStatus.WAITING))
        p = s.plan(5)
        self.assertEqual((p.seq, p.rows, len(p), p.now, p.total, p.groups), (1, 1, 1, 5, 20, 1))
        self.assertEqual((list(p.requests), list(p.scheduled), list(p.computed), list(p.samples)), ([a], [20], [0], [1]))
        self.assertEqual(list(p.input(0)), list(range(20)))
        at, blocks = p.table(0)
        self.assertEqual((at, len(blocks), list(p.row_kinds())), (0, 2, [sluice.RowKind.NEW]))
        self.assertEqual((p.graph.key_id, p.loads(), p.pending(), p.transfers()), (-1, [], [], []))
        outs = s.apply(p, [9])
        self.assertEqual((outs[0].request, outs[0].tokens, outs[0].first, outs[0].finish), (a, [9], True, Finish.NOT_FINISHED))
        p, outs = step(s)
        self.assertEqual((outs[0].finish, s.has_work()), (Finish.LENGTH, True))
        p, outs = step(s)
        s.check()
        self.assertEqual(s.stats()["finished"][Finish.LENGTH], 1)

    def test_views_end_with_the_plan(self) -> None:
        s = self.make()
        s.add("a", [1, 2, 3], max_tokens=2)
        p = s.plan(1)
        view = p.inputs
        with self.assertRaises((TypeError, ValueError)):
            view[0] = 5  # read-only
        s.apply(p, [9])
        with self.assertRaisesRegex(sluice.PlanError, "was applied"):
            _ = p.scheduled
        with self.assertRaises(AttributeError):
            _ = p.nothing

    def test_nothing_is_copied(self) -> None:
        s = self.make()
        s.add("a", [1, 2, 3], max_tokens=2)
        p = s.plan(1)
        where = ctypes.cast(p.c.inputs, ctypes.c_void_p).value
        self.assertEqual(p.inputs.__array_interface__["data"][0] if numpy else address(p.inputs), where)

    @unittest.skipUnless(numpy, "NumPy is not there")
    def test_numpy(self) -> None:
        s = self.make()
        s.add("a", numpy.arange(20, dtype=numpy.int32), max_tokens=2)
        p = s.plan(1)
        self.assertIsInstance(p.inputs, numpy.ndarray)
        self.assertEqual((p.inputs.dtype, p.requests.dtype, p.samples.dtype), (numpy.int32, numpy.uint64, numpy.uint8))
        self.assertTrue((p.inputs == numpy.arange(20)).all())
        s.apply(p, numpy.array([3], dtype=numpy.int32), counts=numpy.array([1], dtype=numpy.int64))

    def test_kinds_of_arrays(self) -> None:
        s = self.make()
        for i, prompt in enumerate(([1, 2], (1, 2), range(1, 3), array.array("i", [1, 2]), memoryview(array.array("i", [1, 2])), array.array("q", [1, 2]))):
            s.add(f"r{i}", prompt, max_tokens=2)
        p = s.plan(1)
        self.assertEqual([list(p.input(i)) for i in range(6)], [[1, 2]] * 6)

    def test_stop_tokens_and_namespaces(self) -> None:
        s = self.make()
        s.add("eos", range(32), max_tokens=9, eos=[7], namespace=Namespace(salt="x"))
        s.add("id", range(32), max_tokens=9, stop=[6, 7], namespace=Namespace(lora_name="x", lora_id=1))
        p = s.plan(1)
        self.assertEqual(list(p.local_hits), [0, 0])  # a salt and an adapter of one name are two
        outs = s.apply(p, [7, 7])
        self.assertEqual([(o.finish, o.stop, o.stop_token) for o in outs], [(Finish.STOP, sluice.Stop.EOS, 0), (Finish.STOP, sluice.Stop.ID, 7)])

    def test_failed_step(self) -> None:
        s = self.make()
        s.add("a", range(20), max_tokens=2)
        p = s.plan(1)
        self.assertEqual(s.apply(p, failed=True), [])
        p = s.plan(2)
        self.assertEqual(list(p.scheduled), [20])

    def test_refusal(self) -> None:
        s = self.make(Scheduler={"Append": {"Enable": True}})
        a = s.add("a", range(40), max_tokens=2, route=Route.APPEND_PREFILL)
        p = s.plan(1)
        self.assertEqual([(i, r.reason.name, r.prompt_tokens) for i, r in p.refused()], [(a, "NO_PREFIX", 40)])
        out = s.apply(p)[0]
        self.assertEqual((out.finish, out.refusal), (Finish.REFUSED, sluice.Refusal(sluice.RefusalReason.NO_PREFIX, 40, 0)))

    def test_deadline(self) -> None:
        s = self.make(Connector={"Lookup": "Ask"}, Scheduler={"LookupTimeout": "5s"})
        self.assertEqual(s.next_deadline(), sluice.NEVER)
        s.add("a", range(40), max_tokens=2)
        p, _ = step(s, 1000)
        self.assertEqual((p.waits, s.next_deadline(), s.has_work()), (sluice.Wait.LOOKUP, 5_000_001_000, False))
        p, _ = step(s, 5_000_001_000)
        self.assertEqual(p.rows, 1)  # it goes on without an answer

    def test_graphs(self) -> None:
        s = self.make(Graphs={})
        s.add("a", range(10), max_tokens=4)
        p = s.plan(1)
        self.assertEqual((p.graph.mode, p.graph.reason, len(p.verdicts)), (Mode.PIECEWISE, "prefill_row", 1))
        s.apply(p, [1])
        p = s.plan(2)
        self.assertEqual((p.graph.mode, p.graph.reason, p.graph.key.reqs >= 1), (Mode.FULL, "full", True))

    def test_encoding(self) -> None:
        s = self.make()
        s.add("a", range(20), max_tokens=2)
        p = s.plan(1)
        self.assertEqual(s.encode(p)[:4], b"SLPL")

    def test_ranks(self) -> None:
        s = self.make(Scheduler={"Append": {"Enable": True, "Governor": {"FirstTokens": 48}}})
        s.add("a", range(60), max_tokens=2, route=Route.APPEND_PREFILL)
        cap, wants = s.propose()
        self.assertEqual(wants, True)
        cap, chunk = sluice.agree([(cap, wants), (5, False)])
        self.assertEqual((cap, chunk), (5, True))
        s.set_agreement(cap, chunk)

    def test_queues_and_dump(self) -> None:
        s = self.make(Scheduler={"MaxNumSeqs": 1})
        a, b = s.add("a", range(20), max_tokens=3), s.add("b", range(20), max_tokens=3)
        step(s)
        self.assertEqual((s.queue(sluice.QueueKind.RUNNING), s.queue(sluice.QueueKind.WAITING)), ([a], [b]))
        self.assertIn("a 0.1 running", s.dump())
        self.assertEqual(s.info().max_rows, 1)
        s.set_pause(sluice.Pause.PAUSE_ALL)
        self.assertEqual(s.plan(3).waits, sluice.Wait.RESUME)

    def test_session(self) -> None:
        s = self.make()
        a = s.add("chat", range(20), max_tokens=1, resumable=True)
        step(s)
        self.assertEqual(s.state(a), sluice.RequestStatus.WAITING_INPUT)
        self.assertEqual(s.add("chat", [50, 51], max_tokens=1, resumable=True), a)
        p = s.plan(2)
        self.assertEqual((list(p.computed), list(p.input(0))), ([20], [50, 51]))


class Transfers(unittest.TestCase):
    def make(self, connector: "dict[str, str]", **parts: Any) -> Scheduler:
        s = Scheduler(config(Connector=connector, **parts))
        self.addCleanup(s.close)
        return s

    def test_lookup_and_load(self) -> None:
        s = self.make({"Lookup": "Ask"})
        a = s.add("a", range(40), max_tokens=2)
        p, _ = step(s)
        self.assertEqual((p.rows, p.seq), (0, 1))
        p = s.plan(2)
        self.assertEqual(p.pending(), [(a, 0)])
        s.apply(p)
        s.offer(a, Offer(Lookup.OFFER, 32))
        self.assertTrue(s.has_work())
        p = s.plan(3)
        load = p.loads()[0]
        self.assertEqual((load.request, load.start, load.end, load.asynchronous, len(load.blocks[0])), (a, 0, 32, True, 2))
        s.apply(p)
        s.deliver([Event(EventKind.RECEIVED, a)])
        p, _ = step(s)
        self.assertEqual(s.stats()["prompt_external"], 32)
        s.check()

    def test_offer_with_the_request(self) -> None:
        s = self.make({})
        s.add("a", range(40), max_tokens=2, offer=Offer(Lookup.OFFER, 32, asynchronous=False))
        s.add("b", range(100, 140), max_tokens=2)
        p = s.plan(1)
        self.assertEqual((list(p.external_hits), list(p.computed), list(p.scheduled)), ([32, 0], [32, 0], [8, 40]))

    def test_shorter_local_hit_asks_again(self) -> None:
        s = self.make({})
        a = s.add("a", range(40), max_tokens=2, offer=Offer(Lookup.OFFER, 32, beyond=16))
        p = s.plan(1)
        self.assertEqual(p.pending(), [(a, 0)])

    def test_failed_load(self) -> None:
        s = self.make({}, Scheduler={"LoadFailure": "RecomputeLoad"})
        a = s.add("a", range(40), max_tokens=2, offer=Offer(Lookup.OFFER, 32))
        p = s.plan(1)
        blocks = p.loads()[0].blocks[0]
        s.apply(p)
        s.deliver([Event(EventKind.FAILED, a, blocks=(blocks[1],)), Event(EventKind.RECEIVED, a)])
        p, _ = step(s)
        s.check()
        self.assertEqual(s.stats()["failed_blocks"], 1)

    def test_save_of_a_preempted_request(self) -> None:
        s = self.make({"Preempted": "Save"}, Cache={"Blocks": 6}, Scheduler={"MaxModelLen": 80})
        a, b = s.add("a", range(32), max_tokens=30), s.add("b", range(100, 132), max_tokens=4)
        step(s)
        p = s.plan(2)  # one block is left, and both need one
        self.assertEqual(p.preempted(), [(b, True)])
        save = p.transfers()[0]
        self.assertEqual((save.kind, save.request, save.tokens, len(save.blocks[0])), (TransferKind.SAVE, b, 32, 2))
        s.apply(p, [7])
        for now in range(3, 20):  # until a has taken one of the blocks that were b's
            step(s, now)
        s.abort(a)
        p = s.plan(20)
        self.assertEqual(p.pending(), [(b, 16)])  # not before the save is complete
        s.apply(p)
        s.deliver([Event(EventKind.SAVED, b)])
        p = s.plan(21)
        self.assertEqual([(x.request, x.start, x.end) for x in p.loads()], [(b, 16, 32)])
        s.apply(p)
        s.deliver([Event(EventKind.RECEIVED, b)])
        p = s.plan(22)
        self.assertEqual((list(p.requests), list(p.computed), list(p.input(0))), ([b], [32], [7]))
        s.check()

    def test_save_that_is_lost(self) -> None:
        s = self.make({"Preempted": "Save"}, Cache={"Blocks": 6}, Scheduler={"MaxModelLen": 80})
        a, b = s.add("a", range(32), max_tokens=30), s.add("b", range(100, 132), max_tokens=4)
        step(s)
        step(s, 2)
        s.abort(a)
        s.deliver([Event(EventKind.FAILED, b)])
        p = s.plan(3)
        self.assertEqual((p.pending(), p.rows), ([], 1))

    def test_send_of_a_finished_request(self) -> None:
        s = self.make({})
        a = s.add("a", range(40), max_tokens=1, hold_at_end=True)
        step(s)
        send = s.transfers[0]
        self.assertEqual((send.kind, send.request, send.tokens, len(send.blocks[0])), (TransferKind.SEND, a, 40, 3))
        self.assertEqual(s.state(a), sluice.RequestStatus.FINISHED)
        s.deliver([Event(EventKind.SENT, a)])
        with self.assertRaises(sluice.UnknownError):
            s.state(a)
        self.assertEqual(s.stats()["held"], 0)

    def test_asked_again_after_a_preemption(self) -> None:
        s = self.make({"Lookup": "Ask"})
        a = s.add("a", range(40), max_tokens=2, offer=ASK)
        self.assertEqual(s.plan(1).pending(), [(a, 0)])


class Events(unittest.TestCase):
    def test_stored_and_removed(self) -> None:
        with Scheduler(config(Cache={"Events": {"Mode": "EventsOn", "Medium": "NPU"}, "BlockSize": 4})) as s:
            s.add("a", range(10), max_tokens=1, namespace=Namespace("t", "s", "l", 3, "m", "v"))
            p = s.plan(1)
            self.assertEqual(s.take_events(), [])  # not before the step is applied
            s.apply(p, [7])
            (stored,) = s.take_events()
            self.assertEqual((stored.kind.name, stored.tokens, len(stored.hashes), stored.parent), ("STORED", list(range(8)), 2, None))
            self.assertEqual((stored.medium, stored.block_size, stored.namespace), ("NPU", 4, Namespace("t", "s", "l", 3, "m", "v")))
            self.assertEqual({len(h) for h in stored.hashes}, {32})
            self.assertTrue(s.reset_cache())
            self.assertEqual([e.kind.name for e in s.take_events()], ["CLEARED"])
        with Scheduler(config()) as s, self.assertRaises(sluice.AbsentError):
            s.take_events()


class Recordings(unittest.TestCase):
    def test_record_and_replay(self) -> None:
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "steps.jsonl")
            with Scheduler(config(Record={"Path": path}, Connector={})) as s:
                s.add("a", range(40), max_tokens=3, offer=Offer(Lookup.OFFER, 16, asynchronous=False))
                s.add("b", range(60), max_tokens=3)
                for now in range(1, 5):
                    step(s, now)
                s.flush_recording()
                self.assertEqual(sluice.replay(path).divergence, "")
            whole = sluice.replay(path)
            self.assertEqual((whole.plans, whole.outputs, whole.divergence), (4, 6, ""))
            with open(path, encoding="utf-8") as f:
                lines = f.read().replace('"tokens":[7]', '"tokens":[8]', 1)
            with open(path, "w", encoding="utf-8") as f:
                f.write(lines)
            self.assertIn("output", sluice.replay(path).divergence)
            with self.assertRaises(sluice.SluiceError):
                sluice.replay(os.path.join(d, "none"))


class Misuse(unittest.TestCase):
    def test_errors(self) -> None:
        with self.assertRaisesRegex(sluice.ConfigError, "Cash: there is no such key"):
            Scheduler({"Cash": {}})
        s = Scheduler(config())
        with self.assertRaisesRegex(sluice.RequestError, "Prompt: is empty"):
            s.add("a", [], max_tokens=1)
        a = s.add("a", [1, 2], max_tokens=1)
        with self.assertRaises(sluice.RequestError) as raised:
            s.add("a", [1, 2], max_tokens=1)
        self.assertEqual(raised.exception.status, sluice.Status.DUPLICATE)
        with self.assertRaisesRegex(sluice.UnknownError, "unknown request"):
            s.abort(a + 1)
        with self.assertRaisesRegex(ValueError, "zero byte"):
            s.add("a\0b", [1], max_tokens=1)
        p = s.plan(1)
        with self.assertRaisesRegex(sluice.PlanError, "1 plans are in flight"):
            s.plan(2)
        with self.assertRaisesRegex(sluice.ResultError, "Tokens does not have"):
            s.apply(p, [1, 2])
        s.apply(p, [1])
        with self.assertRaisesRegex(sluice.PlanError, "applied already"):
            s.apply(p, [1])
        with self.assertRaisesRegex(sluice.PlanError, "was not made"):
            s.apply(99, [1])
        s.close()
        s.close()
        with self.assertRaises(sluice.HandleError):
            s.plan(3)

    def test_two_threads(self) -> None:
        s = Scheduler(config())
        s.add("a", range(200), max_tokens=50)
        met = threading.Event()
        stop = threading.Event()

        def intrude() -> None:
            while not stop.is_set():
                try:
                    s.dump()
                except sluice.BusyError:
                    met.set()

        t = threading.Thread(target=intrude)
        t.start()
        try:
            for _ in range(200000):
                try:
                    s.stats()
                except sluice.BusyError:
                    met.set()
                if met.is_set():
                    break
        finally:
            stop.set()
            t.join()
        self.assertTrue(met.is_set())
        s.check()
        s.close()

    @unittest.skipUnless(hasattr(os, "fork"), "no fork here")
    def test_fork(self) -> None:
        s = Scheduler(config())
        child = os.fork()
        if child == 0:
            status = 1
            try:
                s.has_work()
            except sluice.ForkedError:
                try:
                    Scheduler(config())
                except sluice.ForkedError:
                    status = 0
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertFalse(s.has_work())
        s.close()


class Graphs(unittest.TestCase):
    def test_classification_alone(self) -> None:
        with sluice.Dispatcher({"MaxNumSeqs": 8, "MaxNumBatchedTokens": 64}) as d:
            c = d.classify([1, 1], [20, 31], [10, 32])
            self.assertEqual((c.decision.mode, c.decision.tails, [d.verdict_class(x).name for x in c.verdicts]), (Mode.FULL, 1, ["DECODE", "TAIL"]))
            self.assertEqual(d.verdict_text(c.verdicts[1]), "tail: one prompt token over context")
            self.assertEqual(d.keys()[c.decision.key_id], c.decision.key)
            c = d.classify([1, 5], [20, 0], [10, 32])
            self.assertEqual((c.decision.reason, c.decision.key.mode), ("prefill_row", Mode.PIECEWISE))
            d.set_captured(sluice.Captured.NOTHING_CAPTURED)
            self.assertEqual(d.classify([1], [20], [10]).decision.reason, "not_captured")
            with self.assertRaisesRegex(ValueError, "computed has 1 entries"):
                d.classify([1, 1], [20], [10, 10])


def address(view: memoryview) -> int:
    return ctypes.addressof(view.obj)


if __name__ == "__main__":
    unittest.main()
