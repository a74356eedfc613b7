#pragma once

#include <string>

#include "gtest/gtest.h"
#include "passes/pass.h"

namespace torch_remote::passes::testing {

// Parses, verifies, runs the pass, verifies and prints. Also checks that a second run of the pass changes nothing.
inline std::string run_on_text(const std::string& text, Status (*pass)(ir::Graph&, const PassContext&),
                               const PassContext& context = {}) {
  ir::Graph graph;
  Status status = ir::parse_graph(text, &graph);
  EXPECT_TRUE(status.ok()) << status.message();
  status = ir::verify(graph);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(pass(graph, context).ok());
  status = ir::verify(graph);
  EXPECT_TRUE(status.ok()) << status.message();
  ir::Graph again = graph;
  EXPECT_TRUE(pass(again, context).ok());
  EXPECT_EQ(ir::print(again), ir::print(graph));
  return "\n" + ir::print(graph);
}

// The text in the printer's form.
inline std::string normalized(const std::string& text) {
  ir::Graph graph;
  const Status status = ir::parse_graph(text, &graph);
  EXPECT_TRUE(status.ok()) << status.message();
  return "\n" + ir::print(graph);
}

}  // namespace torch_remote::passes::testing
