"""Print 'N passed, N failed, N skipped' over pytest's XML reports."""

import sys
import xml.etree.ElementTree as ET


def main(paths: list[str]) -> None:
    """Add up the reports."""
    suites = [suite for path in paths for suite in ET.parse(path).iter("testsuite")]
    total, failures, errors, skipped = (
        sum(int(suite.get(key, "0")) for suite in suites)
        for key in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    print(f"{total - failed - skipped} passed, {failed} failed, {skipped} skipped")


if __name__ == "__main__":
    main(sys.argv[1:])
