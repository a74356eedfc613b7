#pragma once

#include <cstdint>

// Client and worker must agree on these facts about recurrent layers (`remote::rnn`). They describe the data that the
// forward pass stores for the backward pass (`reserve`).
namespace torch_remote::ir {

// Numbered as in torch.
enum class RnnMode : int64_t { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };

constexpr int64_t rnn_gates(RnnMode mode) { return mode == RnnMode::kLstm ? 4 : mode == RnnMode::kGru ? 3 : 1; }

// The values stored for each step, sequence and hidden unit. LSTM: the gates and the cell. GRU: the gates, and the
// hidden state's part of the third gate. Directions follow one another; each consists of parts of shape [steps, batch,
// hidden].
constexpr int64_t rnn_reserve(RnnMode mode) { return mode == RnnMode::kLstm ? 5 : mode == RnnMode::kGru ? 4 : 0; }

}  // namespace torch_remote::ir
