"""The scheduler of vLLM's shape, against stand-ins for vLLM's types."""

import unittest
from types import SimpleNamespace
from typing import Any

from sluice import UnknownError
from sluice.vllm import SluiceScheduler

from . import stand_ins as v


def prompt(n: int, seed: int = 0) -> "list[int]":
    return [seed * 1000 + i for i in range(n)]


class Shaped(unittest.TestCase):
    def make(self, connector: Any = None, *, include_finished_set: bool = False, **kwargs: Any) -> SluiceScheduler:
        vllm_config, kv = v.config(**kwargs)
        self.now = 0

        def clock() -> int:
            self.now += 1_000_000
            return self.now

        s = SluiceScheduler(vllm_config, kv, include_finished_set=include_finished_set, types=v.TYPES, connector=connector, clock=clock)
        self.addCleanup(s.shutdown)
        return s

    def step(self, s: SluiceScheduler, tokens: "dict[str, list[int]]", transfer: Any = None) -> "tuple[v.SchedulerOutput, list[v.EngineCoreOutput]]":
        out = s.schedule()
        outputs = s.update_from_output(out, v.result(out, tokens, transfer))
        return out, [o for c in sorted(outputs) for o in outputs[c].outputs]


class Steps(Shaped):
    def test_life_of_a_request(self) -> None:
        s = self.make()
        r = v.Request("a", prompt(20), max_tokens=3)
        s.add_request(r)
        self.assertEqual(s.get_request_counts(), (0, 1))
        out = s.schedule()
        self.assertEqual(out.num_scheduled_tokens, {"a": 20})
        self.assertEqual(out.total_num_scheduled_tokens, 20)
        new = out.scheduled_new_reqs[0]
        self.assertEqual((new.req_id, new.num_computed_tokens, [len(g) for g in new.block_ids]), ("a", 0, [2]))
        self.assertEqual(r.status, v.RequestStatus.RUNNING)
        outs = s.update_from_output(out, v.result(out, {"a": [7]}))
        self.assertEqual([(o.request_id, o.new_token_ids, o.finish_reason) for o in outs[0].outputs], [("a", [7], None)])
        out, outs_ = self.step(s, {"a": [8]})
        cached = out.scheduled_cached_reqs
        self.assertEqual((cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, cached.new_block_ids), (["a"], [20], [1], [None]))
        self.assertEqual(cached.all_token_ids, {})
        out, outs_ = self.step(s, {"a": [9]})
        self.assertEqual((outs_[0].finish_reason, outs_[0].stop_reason), (v.FinishReason.LENGTH, None))
        self.assertEqual((r.status, r.output_token_ids), (v.RequestStatus.FINISHED_LENGTH_CAPPED, [7, 8, 9]))
        self.assertEqual(s.get_num_unfinished_requests(), 0)
        self.assertTrue(s.has_requests())  # the workers are to be told
        out = s.schedule()
        self.assertEqual((out.finished_req_ids, out.total_num_scheduled_tokens), ({"a"}, 0))
        s.update_from_output(out, v.result(out, {}))
        self.assertFalse(s.has_requests())

    def test_chunks_and_prefix(self) -> None:
        s = self.make(max_num_batched_tokens=32)
        s.add_request(v.Request("a", prompt(50), max_tokens=1))
        out, outs = self.step(s, {})
        self.assertEqual((out.num_scheduled_tokens, outs), ({"a": 32}, []))
        out, outs = self.step(s, {"a": [5]})
        self.assertEqual((out.num_scheduled_tokens, outs[0].finish_reason), ({"a": 18}, v.FinishReason.LENGTH))
        s.add_request(v.Request("b", prompt(50), max_tokens=1))
        out, outs = self.step(s, {"b": [5]})
        self.assertEqual((out.scheduled_new_reqs[0].num_computed_tokens, outs[0].num_cached_tokens), (48, 48))

    def test_stops(self) -> None:
        s = self.make()
        params = SimpleNamespace(min_tokens=0, stop_token_ids=[42], ignore_eos=False)
        s.add_request(v.Request("stop", prompt(8), sampling_params=params))
        s.add_request(v.Request("eos", prompt(8, 1), eos_token_id=2))
        s.add_request(v.Request("deaf", prompt(8, 2), eos_token_id=2, sampling_params=SimpleNamespace(min_tokens=0, stop_token_ids=None, ignore_eos=True)))
        _, outs = self.step(s, {"stop": [42], "eos": [2], "deaf": [2]})
        self.assertEqual([(o.request_id, o.finish_reason, o.stop_reason) for o in outs], [("stop", 0, 42), ("eos", 0, None), ("deaf", None, None)])

    def test_preempted_and_resumed(self) -> None:
        for v2 in (False, True):
            with self.subTest(v2=v2):
                s = self.make(blocks=6, max_num_seqs=2, max_model_len=80, use_v2_model_runner=v2)
                a, b = v.Request("a", prompt(32), max_tokens=40), v.Request("b", prompt(32, 1), max_tokens=4)
                s.add_request(a)
                s.add_request(b)
                self.step(s, {"a": [1], "b": [2]})
                out, _ = self.step(s, {"a": [1], "b": [2]})  # a takes the last block, b finds none
                self.assertEqual((out.preempted_req_ids, out.num_scheduled_tokens), ({"b"}, {"a": 1}))
                self.assertEqual(b.status, v.RequestStatus.PREEMPTED)
                s.finish_requests("a", v.RequestStatus.FINISHED_ABORTED)
                out, _ = self.step(s, {"b": [3]})
                self.assertEqual((out.finished_req_ids, out.num_scheduled_tokens["b"] < 33), ({"a"}, True))
                if v2:
                    self.assertEqual(out.scheduled_new_reqs[0].prefill_token_ids, prompt(32, 1) + [2])
                else:
                    cached = out.scheduled_cached_reqs
                    self.assertEqual((cached.resumed_req_ids, cached.all_token_ids), ({"b"}, {"b": prompt(32, 1) + [2]}))
                    self.assertEqual(len(cached.new_block_ids[0][0]), 3)  # the whole table
                self.assertEqual(b.output_token_ids, [2, 3])

    def test_asynchronous(self) -> None:
        s = self.make(async_scheduling=True)
        r = v.Request("a", prompt(8), max_tokens=3)
        s.add_request(r)
        first, second = s.schedule(), s.schedule()
        self.assertEqual(second.scheduled_cached_reqs.num_output_tokens, [1])
        with self.assertRaisesRegex(ValueError, "in the order"):
            s.update_from_output(second, v.result(second, {"a": [2]}))
        s.update_from_output(first, v.result(first, {"a": [1]}))
        third = s.schedule()
        s.update_from_output(second, v.result(second, {"a": [2]}))
        outs = s.update_from_output(third, v.result(third, {"a": [3]}))
        self.assertEqual((r.output_token_ids, outs[0].outputs[0].finish_reason), ([1, 2, 3], v.FinishReason.LENGTH))

    def test_end_while_a_step_is_under_way(self) -> None:
        s = self.make(async_scheduling=True)
        s.add_request(v.Request("a", prompt(8), max_tokens=9, eos_token_id=2))
        s.add_request(v.Request("b", prompt(8, 1), max_tokens=9))
        first, second = s.schedule(), s.schedule()
        s.update_from_output(first, v.result(first, {"a": [2], "b": [5]}))
        outs = s.update_from_output(second, v.result(second, {"a": [7], "b": [6]}))
        self.assertEqual([(o.request_id, o.new_token_ids) for o in outs[0].outputs], [("b", [6])])

    def test_drafts(self) -> None:
        s = self.make(async_scheduling=True, speculative_config=SimpleNamespace(num_speculative_tokens=2))
        r = v.Request("a", prompt(8), max_tokens=6)
        s.add_request(r)
        self.step(s, {"a": [1]})
        out, _ = self.step(s, {"a": [2, 3]})
        self.assertEqual((out.scheduled_spec_decode_tokens, out.num_scheduled_tokens), ({"a": [-1, -1]}, {"a": 3}))
        self.assertEqual(r.output_token_ids, [1, 2, 3])
        with self.assertRaisesRegex(ValueError, "asynchronous"):
            self.make(speculative_config=SimpleNamespace(num_speculative_tokens=2))

    def test_clients_and_finished_sets(self) -> None:
        s = self.make(include_finished_set=True)
        s.add_request(v.Request("a", prompt(8), max_tokens=1, client_index=0))
        s.add_request(v.Request("b", prompt(8, 1), max_tokens=2, client_index=3))
        out = s.schedule()
        outs = s.update_from_output(out, v.result(out, {"a": [1], "b": [2]}))
        self.assertEqual((sorted(outs), outs[0].finished_requests, outs[3].finished_requests), ([0, 3], {"a"}, None))

    def test_finish_requests(self) -> None:
        s = self.make()
        for name in ("a", "b", "c"):
            s.add_request(v.Request(name, prompt(8)))
        done = s.finish_requests(["a", "nobody"], v.RequestStatus.FINISHED_ABORTED)
        self.assertEqual([r.request_id for r in done], ["a"])
        self.assertEqual(s.finish_requests("a", v.RequestStatus.FINISHED_ABORTED), [])
        self.assertEqual(len(s.finish_requests(None, v.RequestStatus.FINISHED_STOPPED)), 2)
        self.assertEqual(s.get_num_unfinished_requests(), 0)
        self.assertEqual(self.step(s, {})[0].finished_req_ids, {"a", "b", "c"})

    def test_pause_throttle_and_reset(self) -> None:
        s = self.make()
        s.add_request(v.Request("a", prompt(40), max_tokens=9))
        self.step(s, {"a": [1]})
        s.add_request(v.Request("b", prompt(40, 1)))
        out = s.schedule(throttle_prefills=True)
        self.assertEqual(list(out.num_scheduled_tokens), ["a"])
        s.update_from_output(out, v.result(out, {"a": [1]}))
        s.set_pause_state(v.PauseState.PAUSED_NEW)
        self.assertEqual((s.get_num_unfinished_requests(), list(self.step(s, {"a": [1]})[0].num_scheduled_tokens)), (1, ["a"]))
        s.set_pause_state(v.PauseState.PAUSED_ALL)
        self.assertEqual((s.has_unfinished_requests(), self.step(s, {})[0].num_scheduled_tokens), (False, {}))
        self.assertFalse(s.reset_prefix_cache())
        self.assertTrue(s.reset_prefix_cache(reset_running_requests=True))
        s.set_pause_state(v.PauseState.UNPAUSED)
        self.assertEqual(self.step(s, {"a": [1], "b": [2]})[0].num_scheduled_tokens, {"a": 43, "b": 40})

    def test_grammar(self) -> None:
        s = self.make()
        grammar = SimpleNamespace(accept_tokens=lambda name, tokens: tokens != [13])
        waits = SimpleNamespace(grammar=None)
        a = v.Request("a", prompt(8), structured_output_request=waits)
        b = v.Request("b", prompt(8, 1), structured_output_request=SimpleNamespace(grammar=RuntimeError("no such grammar")))
        s.add_request(a)
        s.add_request(b)
        out, outs = self.step(s, {})
        self.assertEqual((out.num_scheduled_tokens, [(o.request_id, o.finish_reason) for o in outs]), ({}, [("b", v.FinishReason.ERROR)]))
        waits.grammar = grammar
        s.structured_output_manager = SimpleNamespace(grammar_bitmask=lambda requests, names, drafts: ("mask", names))
        out = s.schedule()
        self.assertTrue(out.has_structured_output_requests)
        self.assertEqual(s.get_grammar_bitmask(out), v.GrammarOutput(["a"], ("mask", ["a"])))
        s.update_from_output(out, v.result(out, {"a": [5]}))
        _, outs = self.step(s, {"a": [13]})
        self.assertEqual((outs[0].new_token_ids, outs[0].finish_reason), ([13], v.FinishReason.ERROR))

    def test_append_attempt(self) -> None:
        s = self.make(additional_config={"scheduler_config": {"decoder_append_prefill_enable": True}})
        ask = {"decoder_append_prefill": True}
        s.add_request(v.Request("cold", prompt(40), kv_transfer_params=ask))
        out, outs = self.step(s, {})
        self.assertEqual((out.num_scheduled_tokens, outs[0].new_token_ids, outs[0].stop_reason), ({}, [], "append_prefill_miss"))
        s.add_request(v.Request("turn 1", prompt(40), max_tokens=1))
        self.step(s, {"turn 1": [4]})
        s.add_request(v.Request("turn 2", prompt(60), max_tokens=1, kv_transfer_params=ask))
        out, outs = self.step(s, {"turn 2": [4]})
        self.assertEqual((out.num_scheduled_tokens, outs[0].num_cached_tokens), ({"turn 2": 28}, 32))

    def test_refused(self) -> None:
        s = self.make()
        with self.assertRaisesRegex(ValueError, "pooling_params"):
            s.add_request(SimpleNamespace(request_id="p", pooling_params=object(), mm_features=[]))
        s.add_request(v.Request("a", prompt(8)))
        with self.assertRaisesRegex(Exception, "live request has this id"):
            s.add_request(v.Request("a", prompt(8)))
        with self.assertRaises(UnknownError):
            s.core.abort(12345)


class Connectors(Shaped):
    def test_asynchronous_load(self) -> None:
        c = v.Connector({"a": (32, True)})
        s = self.make(c)
        a = v.Request("a", prompt(40), max_tokens=1)
        s.add_request(a)
        out, _ = self.step(s, {})
        self.assertEqual((out.num_scheduled_tokens, out.kv_connector_metadata), ({}, {"scheduled": {}}))
        self.assertEqual((a.status, a.num_computed_tokens), (v.RequestStatus.WAITING_FOR_REMOTE_KVS, 32))
        out, _ = self.step(s, {}, v.transfer(recving=("a", "stranger")))
        out, outs = self.step(s, {"a": [9]})
        self.assertEqual((out.num_scheduled_tokens, outs[0].num_cached_tokens), ({"a": 8}, 32))
        self.assertEqual(c.of("a"), [("new", "a"), ("matched", "a", 0, 32), ("alloc", "a", 2, 32), ("alloc", "a", 3, 0), ("finished", "a", 3)])

    def test_load_into_the_step(self) -> None:
        c = v.Connector({"a": (32, False)})
        s = self.make(c)
        s.add_request(v.Request("a", prompt(40), max_tokens=1))
        out, _ = self.step(s, {"a": [9]})
        self.assertEqual((out.num_scheduled_tokens, out.scheduled_new_reqs[0].num_computed_tokens), ({"a": 8}, 32))
        self.assertIn(("alloc", "a", 3, 32), c.calls)

    def test_answer_that_comes_later(self) -> None:
        c = v.Connector({"a": [(None, False), (None, False), (16, True)]})
        s = self.make(c)
        s.add_request(v.Request("a", prompt(40), max_tokens=1))
        s.add_request(v.Request("b", prompt(40, 1), max_tokens=1))
        self.assertEqual(self.step(s, {"b": [1]})[0].num_scheduled_tokens, {"b": 40})
        self.step(s, {})
        self.step(s, {}, v.transfer(recving=("a",)))
        out, _ = self.step(s, {"a": [1]})
        self.assertEqual(out.num_scheduled_tokens, {"a": 24})

    def test_local_hit_first(self) -> None:
        c = v.Connector({"b": (16, True)})
        s = self.make(c)
        s.add_request(v.Request("a", prompt(40), max_tokens=1))
        self.step(s, {"a": [1]})
        s.add_request(v.Request("b", prompt(60), max_tokens=1))
        self.step(s, {})
        self.assertEqual(c.of("b")[1:3], [("matched", "b", 32, 16), ("alloc", "b", 3, 16)])

    def test_failed_load(self) -> None:
        for policy, after in (("fail", {}), ("recompute", {"a": 40})):
            with self.subTest(policy=policy):
                c = v.Connector({"a": [(32, True), (0, False)]})
                s = self.make(c, kv_transfer_config=SimpleNamespace(kv_load_failure_policy=policy, is_kv_producer=False))
                s.add_request(v.Request("a", prompt(40), max_tokens=1))
                self.step(s, {})
                blocks = s._live[s._ids["a"]].tables[0]
                _, outs = self.step(s, {}, v.transfer(recving=("a",), invalid=(blocks[0],)))
                out, more = self.step(s, {"a": [1]})
                self.assertEqual(out.num_scheduled_tokens, after)
                reasons = [o.finish_reason for o in outs + more]
                self.assertEqual(reasons, [v.FinishReason.ERROR if policy == "fail" else v.FinishReason.LENGTH])
                s.core.check()

    def test_blocks_kept_until_sent(self) -> None:
        c = v.Connector({}, delay=("a",))
        s = self.make(c)
        free = s.core.stats()["blocks_available"]
        s.add_request(v.Request("a", prompt(40), max_tokens=1))
        _, outs = self.step(s, {"a": [1]})
        self.assertEqual((len(outs[0].kv_transfer_params["remote_block_ids"]), s.core.stats()["held"]), (3, 1))
        self.assertTrue(s.has_requests())
        self.step(s, {}, v.transfer(sending=("a",)))
        self.assertEqual((s.core.stats()["held"], s.core.stats()["blocks_available"], s.has_requests()), (0, free, False))

    def test_finished_from_outside(self) -> None:
        c = v.Connector({}, delay=("a",))
        s = self.make(c)
        for name in ("a", "b", "c"):
            s.add_request(v.Request(name, prompt(40, ord(name)), max_tokens=9))
        self.step(s, {"a": [1], "b": [1], "c": [1]})
        s.finish_requests(["a", "b"], v.RequestStatus.FINISHED_STOPPED)
        s.finish_requests("c", v.RequestStatus.FINISHED_ABORTED)
        self.step(s, {})
        self.assertEqual([call for call in c.calls if call[0] == "finished"], [("finished", "a", 3), ("finished", "b", 3), ("finished", "c", 0)])
        self.assertEqual(s.core.stats()["held"], 1)
        self.step(s, {}, v.transfer(sending=("a",)))
        self.assertEqual(s.core.stats()["held"], 0)
        self.assertFalse(s.has_requests())

    def test_abort_while_loading(self) -> None:
        c = v.Connector({"a": (32, True)})
        s = self.make(c)
        s.add_request(v.Request("a", prompt(40)))
        self.step(s, {})
        s.finish_requests("a", v.RequestStatus.FINISHED_ABORTED)
        self.step(s, {})
        self.assertEqual(c.of("a")[-1], ("finished", "a", 0))
        self.assertEqual(s.core.stats()["held"], 1)  # a transfer may still write to its blocks


if __name__ == "__main__":
    unittest.main()
