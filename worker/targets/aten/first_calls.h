#pragma once

// Torch computes exp, sin, sqrt and similar functions of contiguous float and double tensors with MKL's vector math.
// The first call of each such function selects the code for this processor, and this selection is not thread-safe. If
// two threads share a first call, one may run the code of the lowest accuracy, with errors of some 4,000 ulps
// (pytorch/pytorch#188792).
namespace torch_remote::worker::aten {

// Calls each of these functions once in this thread, so that later calls are correct on any number of threads. The
// first call takes about a millisecond; later calls return at once. Any thread may call this.
void make_first_calls();

}  // namespace torch_remote::worker::aten
