// Goes on while the sum is small: the last kernel in the body of a WHILE node.
//
//   nvcc -arch=sm_90 -rdc=true -c -cubin -o while_node.o while_node.cu
//   nvlink -arch=sm_90 -o while_node.cubin while_node.o -lcudadevrt

extern "C" __global__ void go_on(cudaGraphConditionalHandle handle, const float* sum,
                                 float limit, int* turns) {
  ++*turns;
  cudaGraphSetConditional(handle, *sum < limit);
}
