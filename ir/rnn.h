#pragma once

#include <cstdint>

// What the two ends must agree on about recurrent layers (`remote::rnn`): what the forward pass keeps for the backward
// pass (`reserve`).
namespace torch_remote::ir {

// As torch numbers them.
enum class RnnMode : int64_t { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };

constexpr int64_t rnn_gates(RnnMode mode) { return mode == RnnMode::kLstm ? 4 : mode == RnnMode::kGru ? 3 : 1; }

// Kept for each step, sequence and hidden unit: an LSTM's gates and cell, a GRU's gates and the hidden state's share of
// the third. Directions lie one behind the other; in each, parts of [steps, batch, hidden].
constexpr int64_t rnn_reserve(RnnMode mode) { return mode == RnnMode::kLstm ? 5 : mode == RnnMode::kGru ? 4 : 0; }

}  // namespace torch_remote::ir
