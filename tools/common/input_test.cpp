#include "tools/common/input.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace torch_remote::tools {
namespace {

std::string written(const std::string& name, std::string_view bytes) {
  const auto path = std::filesystem::path(::testing::TempDir()) / name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

Input input_of(std::string text) { return {"net.txt", Format::kText, std::move(text), false}; }

std::string error_of(std::string text) {
  ir::Graph graph;
  return load_graph(input_of(std::move(text)), {}, &graph).message();
}

constexpr const char* kText = "graph(s0) {\n  b0: input survives\n  %0: f32[s0]{1} @b0\n  aten::relu_(%0!)\n}\n";

TEST(Input, TheFirstBytesTellWhatItIs) {
  ir::Graph graph;
  ASSERT_TRUE(load_graph(input_of(kText), {}, &graph).ok());
  const std::vector<uint8_t> program = ir::encode_program(graph);
  Input input;
  ASSERT_TRUE(read_input(written("graph.txt", kText), &input).ok());
  EXPECT_EQ(input.format, Format::kText);
  ASSERT_TRUE(
      read_input(written("graph.bin", {reinterpret_cast<const char*>(program.data()), program.size()}), &input).ok());
  EXPECT_EQ(input.format, Format::kProgram);
  ir::Graph back;
  ASSERT_TRUE(load_graph(input, {}, &back).ok());
  EXPECT_EQ(back, graph);
  ASSERT_TRUE(read_input(written("graph.rreplay", "TRREPLAY and more"), &input).ok());
  EXPECT_EQ(input.format, Format::kCapture);
}

TEST(Input, WhatIsNoneOfThemIsNamed) {
  Input input;
  const std::string path = written("image.png", std::string_view("\x89PNG\r\n\x1a\n\0\0", 10));
  EXPECT_EQ(read_input(path, &input).message(),
            path + ": neither the text of a graph, nor a program, nor a capture (.rreplay)");
  EXPECT_EQ(read_input("/proc/nonexistent/graph.txt", &input).message(),
            "cannot open /proc/nonexistent/graph.txt: No such file or directory");
  EXPECT_FALSE(read_input("/", &input).ok());
}

TEST(Input, AnErrorOfTheParserPointsAtItsPlace) {
  EXPECT_EQ(error_of("graph() {\n  b0: input\n  %0: f33[] @b0\n}\n"),
            "net.txt:3:7: expected a dtype, like f32\n  %0: f33[] @b0\n      ^");
  EXPECT_EQ(error_of(""), "net.txt:1:1: expected 'graph'\n\n^");
  EXPECT_EQ(error_of("graph() {\n\tb1: input\n}"),
            "net.txt:2:2: expected b0: buffers are numbered in order\n\tb1: input\n\t^");
}

TEST(Input, AnErrorOfTheVerifierPointsAtTheLineOfTheNode) {
  EXPECT_EQ(error_of("graph() {\n\n  none = aten::relu(\"text\")\n}\n").substr(0, 30),
            "net.txt:3:3: the program is no");
  EXPECT_EQ(error_of("graph() {\n  b0: fresh\n  %0: f32[] @b0\n}\n"),
            "net.txt:3:3: the program is not valid: view %0 is of a buffer without a size\n  %0: f32[] @b0\n  ^");
}

TEST(Input, OfALongLineThePartAroundThePlaceIsShown) {
  const std::string message = error_of("graph(" + std::string(5000, ' ') + "+" + std::string(5000, 'x') + ") {}");
  EXPECT_LT(message.size(), 500u);
  EXPECT_EQ(message.back(), '^');
}

TEST(Input, AProgramOfAnotherVersionIsNamed) {
  ir::Graph graph;
  ASSERT_TRUE(load_graph(input_of(kText), {}, &graph).ok());
  const std::vector<uint8_t> program = ir::encode_program(graph);
  Input input{"net.bin", Format::kProgram, {program.begin(), program.end()}, false};
  // The version is the first field: a 32-bit 7.
  const size_t at = input.bytes.find(std::string("\7\0\0\0", 4), 8);
  size_t refused = 0;
  for (size_t i = at; i != std::string::npos; i = input.bytes.find(std::string("\7\0\0\0", 4), i + 1)) {
    Input changed = input;
    changed.bytes[i] = 8;
    const Status status = load_graph(changed, {}, &graph);
    if (status.message().find("format version 8") != std::string::npos) ++refused;
    EXPECT_TRUE(status.ok() || status.message().starts_with("net.bin: ")) << status.message();
  }
  EXPECT_EQ(refused, 1u);
}

}  // namespace
}  // namespace torch_remote::tools
