"""The graph that is searched: its rates, distances, symmetries, trees and flows."""
