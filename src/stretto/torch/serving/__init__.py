"""Serving engines' own interfaces, with stretto behind them; as plug-ins `*_engine`."""
