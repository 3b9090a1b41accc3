"""An instance of vLLM's own scheduler and connector hooks; only the model is ours."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import torch
import vllm.config as configs
from tests.host.transfer.serving_rank import HEADS, LAYERS, POISON, WIDTH, values
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.worker.gpu.kv_connector import ActiveKVConnector

BLOCK, WINDOW = 16, 40
_MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_attention_heads": HEADS, "vocab_size": 10000,
    "num_key_value_heads": HEADS, "num_hidden_layers": LAYERS,
    "max_position_embeddings": 4096, "torch_dtype": "float32",
}  # fmt: skip


def configured(folder, role, name, *, hybrid=False, extra=None):
    """Return a configuration for which no model is needed, and its cache's."""
    (folder / "config.json").write_text(json.dumps(_MODEL))
    made = configs.VllmConfig(
        model_config=configs.ModelConfig(
            model=str(folder), tokenizer=str(folder), skip_tokenizer_init=True,
            dtype="float32", max_model_len=2048, enforce_eager=True,
        ),
        cache_config=configs.CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        scheduler_config=configs.SchedulerConfig(
            max_num_seqs=32, max_num_batched_tokens=256, max_model_len=2048,
            is_encoder_decoder=False, async_scheduling=False,
            disable_hybrid_kv_cache_manager=False,
        ),
        kv_transfer_config=configs.KVTransferConfig(
            kv_connector="StrettoConnector", kv_role=role, engine_id=name,
            kv_connector_module_path="stretto.transfer.connector.vllm",
            kv_connector_extra_config=extra or {}, kv_load_failure_policy="recompute",
        ),
        device_config=configs.DeviceConfig("cpu"),
    )  # fmt: skip
    how = {"block_size": BLOCK, "num_kv_heads": HEADS, "head_size": WIDTH,
           "dtype": torch.float32}  # fmt: skip
    specs = [FullAttentionSpec(**how)]
    specs += [SlidingWindowSpec(sliding_window=WINDOW, **how)] if hybrid else []
    groups = [
        KVCacheGroupSpec(
            [f"model.layers.{n}{layer}.attn" for layer in range(LAYERS)], s
        )
        for n, s in enumerate(specs)
    ]
    return made, groups


class RealInstance:
    """See the module: `step()` is what vLLM's engine core does in one."""

    def __init__(self, folder, role, name, *, blocks=64, hybrid=False, extra=None):
        self.config, groups = configured(folder, role, name, hybrid=hybrid, extra=extra)
        self.config.cache_config.num_gpu_blocks = blocks
        self.cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[],
                                   kv_cache_groups=groups)  # fmt: skip
        quiet = SimpleNamespace(should_fill_bitmask=lambda *a: False,
                                should_advance=lambda *a: False,
                                accept_tokens=lambda *a: True)  # fmt: skip
        self.scheduler = Scheduler(
            vllm_config=self.config, kv_cache_config=self.cache, log_stats=True,
            structured_output_manager=quiet, block_size=BLOCK,
        )  # fmt: skip
        self.connector = self.scheduler.connector
        self.worker = KVConnectorFactory.create_connector(
            self.config, KVConnectorRole.WORKER, self.cache
        )
        shape = (blocks, HEADS, BLOCK, 2 * WIDTH)
        self.caches = {
            layer: torch.full(shape, POISON) for g in groups for layer in g.layer_names
        }
        kv_transfer_state._KV_CONNECTOR_AGENT = self.worker
        self.hooks = ActiveKVConnector(self.config, self.caches)
        self.joining = KVOutputAggregator.from_connector(self.connector, 1)
        met = self.worker.get_handshake_metadata()
        self.connector.set_xfer_handshake_metadata_pp_aware({(0, 0): met})
        init_none_hash(hash)
        self._hasher = get_request_block_hasher(BLOCK, _hashed)
        self.told, self.wrong, self.came = {}, 0, {}
        self._watch_frees()

    def _watch_frees(self):
        """Poison blocks as soon as nobody holds them, unless the prefix cache may."""
        pool = self.scheduler.kv_cache_manager.block_pool
        free = pool.free_blocks

        def freed(blocks, *a, **how):
            blocks = list(blocks)
            free(blocks, *a, **how)
            gone = [
                b.block_id for b in blocks if not b.ref_cnt and b.block_hash is None
            ]
            for cache in self.caches.values():
                cache[[n for n in gone if n]] = POISON

        pool.free_blocks = freed

    def add(self, name, tokens, params, outputs=1):
        extra = {"kv_transfer_params": params}
        sampling = SamplingParams(max_tokens=outputs, ignore_eos=True, extra_args=extra)
        sampling.update_from_generation_config({}, 0)
        self.scheduler.add_request(Request(
            request_id=name, prompt_token_ids=list(tokens), sampling_params=sampling,
            pooling_params=None, block_hasher=self._hasher,
        ))  # fmt: skip

    def abort(self, name):
        self.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)

    def has_requests(self):
        return self.scheduler.has_requests()

    def step(self):
        if not self.has_requests():
            return
        output = self.scheduler.schedule()
        made = self._run(output)
        made = self.joining.aggregate([made])
        for some in self.scheduler.update_from_output(output, made).values():
            for one in some.outputs:
                if one.finished:
                    self.told[one.request_id] = one.kv_transfer_params

    def _run(self, output):
        if not output.total_num_scheduled_tokens:
            return self.hooks.no_forward(output)
        self.hooks.pre_forward(output)
        names = list(output.num_scheduled_tokens)
        for group, each in enumerate(self.cache.kv_cache_groups):
            for layer, at in enumerate(each.layer_names):
                self.worker.wait_for_layer_load(at)
                for name in names:
                    count = output.num_scheduled_tokens[name]
                    self._compute(name, count, group, layer)
                self.worker.save_kv_layer(at, self.caches[at], None)
        self.hooks.finish_forward()
        found = self.hooks.post_forward(output.finished_req_ids)
        return ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: n for n, name in enumerate(names)},
            sampled_token_ids=[self._sampled(name) for name in names],
            kv_connector_output=found,
        )  # fmt: skip

    def _sampled(self, name):
        request = self.scheduler.requests[name]
        whole = request.num_computed_tokens >= request.num_tokens
        return [(request.all_token_ids[-1] * 17 + 5) % 9973] if whole else []

    def _compute(self, name, count, group, layer):
        """Compare what is there of a request, and store what a model would."""
        request = self.scheduler.requests[name]
        stop = request.num_computed_tokens  # with those of this step
        start, tokens = stop - count, list(request.all_token_ids)
        table = self.scheduler.kv_cache_manager.get_block_ids(name)[group]
        given = self.cache.kv_cache_groups[group]
        window = getattr(given.kv_cache_spec, "sliding_window", None) or stop
        cache = self.caches[given.layer_names[layer]].numpy()
        low = max(0, start - window + 1)
        for first, last, is_new in ((low, start, False), (start, stop, True)):
            place = np.arange(first, last)
            pages, nth = np.asarray(table)[place // BLOCK], place % BLOCK
            want = values(tokens[first:last], first, layer, (0, HEADS))
            want = np.concatenate([want, want + 1], axis=2).transpose(1, 0, 2)
            if is_new:
                cache[pages, :, nth] = want
            else:
                self.wrong += int((cache[pages, :, nth] != want).any((1, 2)).sum())

    def sides(self):
        return self.connector.side, [self.worker.side]

    def close(self):
        self.worker.shutdown()
        self.connector.shutdown()


def _hashed(given):
    return hash(given).to_bytes(8, "little", signed=True)
