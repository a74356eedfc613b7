#pragma once

// Torch computes exp, sin, sqrt and their like of contiguous float and double tensors with MKL's vector math. The first
// call of each such function chooses the code for this processor, and is not safe: of two threads that share a first
// call one may run the code of the lowest accuracy for its part, off by some 4,000 ulps (pytorch/pytorch#188792).
namespace torch_remote::worker::aten {

// Calls each of these functions once, in this thread: later calls are right however many threads share them. Takes
// about a millisecond, the second time nothing. Any thread.
void make_first_calls();

}  // namespace torch_remote::worker::aten
