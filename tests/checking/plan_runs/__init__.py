"""Run a plan on arrays, its lanes in any order that its signals allow."""
