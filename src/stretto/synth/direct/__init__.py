"""Schedules made in one go: greedy, by levels, along packed trees, by a flow."""
