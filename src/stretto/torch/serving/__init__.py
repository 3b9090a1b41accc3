"""Serving engines' own interfaces, with stretto behind them: `.vllm` and `.sglang`."""
