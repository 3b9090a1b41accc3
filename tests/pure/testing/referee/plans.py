"""Plans with one thing wrong, each of a kind that a proof once let pass."""

from stretto.compiler.plan import parse_plan

UNEQUAL_IN_PLACE = """plan all_to_all/one_shot collective=all_to_all ranks=3 split=1
schedule push packets staged in_place
atoms 0:1 1:2 2:3 3:4 4:5 5:6 6:7 7:8 8:9
rank 0 input 0:3@0 output 0:1@0 1:2@3 2:3@6 stage 2
  lane 0
    put_packets r1.stage[0]! <- input[1] @1
    put_packets r2.stage[0]! <- input[2] @2
    copy output[0] <- input[0] @0
    read_packets output[2] <- stage[1]! @6
    read_packets output[1] <- stage[0]! @3
rank 1 input 0:3@3 output 0:1@1 1:2@4 2:3@7 stage 2
  lane 0
    put_packets r2.stage[1]! <- input[2] @5
    put_packets r0.stage[0]! <- input[0] @3
    copy output[1] <- input[1] @4
    read_packets output[0] <- stage[0]! @1
    read_packets output[2] <- stage[1]! @7
rank 2 input 0:3@6 output 0:1@2 1:2@5 2:3@8 stage 2
  lane 0
    put_packets r0.stage[1]! <- input[0] @6
    put_packets r1.stage[1]! <- input[1] @7
    copy output[2] <- input[2] @8
    read_packets output[1] <- stage[1]! @5
    read_packets output[0] <- stage[0]! @2
"""
"""Output part q lies over input part q only when all parts are equal."""

OTHER_CUTS = """plan mixed collective=all_to_all ranks=2 split=2
schedule push packets staged in_place
atoms 0:2 2:4 4:5 5:6 6:8
rank 0 input 0:2@0 output 0:1@0 1:3@2 stage 2
  lane 0
    put_packets r1.stage[0]! <- input[1] @1
    copy output[0] <- input[0] @0
    read_packets output[1] <- stage[0]! @2
    read_packets output[2] <- stage[1]! @3
rank 1 input 0:3@2 output 0:1@1 1:2@4 stage 1
  lane 0
    put_packets r0.stage[0]! <- input[0] @2
    put_packets r0.stage[1]! <- input[1] @3
    copy output[1] <- input[2] @4
    read_packets output[0] <- stage[0]! @1
"""
"""Part 0 goes out as two chunks and comes in as one, which is wider than a tile."""

OTHER_CHUNK = """plan relay collective=permute ranks=3 split=2 pairs=((0,2),)
schedule push bulk staged
atoms 0:1 1:2 2:6
rank 0 input 0:2@0 output stage 0
  lane 0
    put r1.stage[0] <- input[0] @0
    signal r1.0 n=1
    put r1.stage[1] <- input[1] @1
    signal r1.0 n=2
    wait r1.0 n=1
    wait r2.0 n=1
rank 1 input output stage 2
  lane 0
    signal r0.0 n=1 relaxed
    wait r0.0 n=1
    put r2.stage[0] <- stage[0] @1
    signal r2.0 n=1
    wait r0.0 n=2
    put r2.stage[1] <- stage[1] @1
    signal r2.0 n=2
    wait r2.0 n=1
rank 2 input output 0:2@0 stage 2
  lane 0
    signal r0.0 n=1 relaxed
    signal r1.0 n=1 relaxed
    wait r1.0 n=1
    copy output[0] <- stage[0] @0
    wait r1.0 n=2
    copy output[1] <- stage[1] @1
"""
"""Rank 1 passes chunk 0 on as if it were chunk 1, which may be shorter."""

BACKWARDS = """plan all_reduce/one_shot collective=all_reduce ranks=3 split=1
schedule push packets staged
atoms 0:3
rank 0 input 0:1@0 output 0:1@0 stage 2
  lane 0
    put_packets r1.stage[0]!, r2.stage[0]! <- input[0] @0
    reduce_packets output[0] <- input[0], stage[0]!, stage[1]! @0 finish
rank 1 input 0:1@0 output 0:1@0 stage 2
  lane 0
    put_packets r2.stage[1]!, r0.stage[0]! <- input[0] @0
    reduce_packets output[0] <- stage[0]!, input[0], stage[1]! @0 finish
rank 2 input 0:1@0 output 0:1@0 stage 2
  lane 0
    put_packets r0.stage[1]!, r1.stage[1]! <- input[0] @0
    reduce_packets output[0] <- input[0], stage[1]!, stage[0]! @0 finish
"""
"""Rank 2 adds from the last rank to the first."""

TWO_LANES = """plan two_lanes collective=all_gather ranks=2 split=1
schedule push packets staged
atoms 0:1 1:2
rank 0 input 0:1@0 output 0:2@0 stage 1
  lane 0
    put_packets output[0], r1.stage[0]! <- input[0] @0
  lane 1
    read_packets output[1] <- stage[0]! @1
rank 1 input 0:1@1 output 0:2@0 stage 1
  lane 0
    put_packets output[1], r0.stage[0]! <- input[0] @1
  lane 1
    read_packets output[0] <- stage[0]! @0
"""
"""Lane 0 waits for nobody: in the third tile it stores where nobody has read."""

FORCED = {"unequal counts in place": frozenset({0, 1, 2})}
"""What is wrong only where it is run in place though nobody should."""

WRONG = {
    "unequal counts in place": parse_plan(UNEQUAL_IN_PLACE),
    "other cuts in place": parse_plan(OTHER_CUTS),
    "another chunk in staging": parse_plan(OTHER_CHUNK),
    "added backwards": parse_plan(BACKWARDS),
    "lanes that run ahead": parse_plan(TWO_LANES),
}
