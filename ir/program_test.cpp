#include <string>

#include "flatbuffers/flatbuffers.h"
#include "gtest/gtest.h"
#include "ir/graph.h"
#include "ir/program_generated.h"
#include "ir/testing/random_graph.h"

namespace torch_remote::ir {
namespace {

using testing::Rng;

Status decode(const std::vector<uint8_t>& bytes, Graph* graph) {
  return decode_program(bytes.data(), bytes.size(), graph);
}

TEST(Program, ComesBackAsItWas) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Rng rng(seed);
    const Graph graph = testing::random_graph(rng);
    Graph back;
    const Status status = decode(encode_program(graph), &back);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.message();
    ASSERT_EQ(back, graph) << "seed " << seed << "\n" << print(graph) << print(back);
  }
}

TEST(Program, IsReadAtAnyAlignment) {
  Rng rng(1);
  const Graph graph = testing::random_graph(rng);
  const std::vector<uint8_t> bytes = encode_program(graph);
  for (size_t shift = 0; shift < 9; ++shift) {
    std::vector<uint8_t> moved(shift);
    moved.insert(moved.end(), bytes.begin(), bytes.end());
    Graph back;
    ASSERT_TRUE(decode_program(moved.data() + shift, bytes.size(), &back).ok());
    ASSERT_EQ(back, graph);
  }
}

TEST(Program, EveryTruncationIsRefused) {
  Rng rng(2);
  const Graph graph = testing::random_graph(rng);
  const std::vector<uint8_t> bytes = encode_program(graph);
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<uint8_t> cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    Graph back;
    const bool only_padding = size + 8 > bytes.size();
    ASSERT_TRUE(!decode(cut, &back).ok() || (only_padding && back == graph)) << size;
  }
}

TEST(Program, DamagedBytesNeverCrashAndNeverGiveAnInvalidGraph) {
  size_t accepted = 0;
  for (uint64_t seed = 0; seed < 6000; ++seed) {
    Rng rng(seed);
    std::vector<uint8_t> bytes = encode_program(testing::random_graph(rng, {.max_nodes = 6}));
    for (uint64_t flips = 1 + rng() % 4; flips > 0; --flips) {
      uint8_t& byte = bytes[rng() % bytes.size()];
      byte = rng() % 2 == 0 ? static_cast<uint8_t>(rng()) : static_cast<uint8_t>(byte ^ 1u << rng() % 8);
    }
    Graph back;
    if (!decode(bytes, &back).ok()) continue;
    ++accepted;
    ASSERT_TRUE(verify(back).ok());
    ASSERT_FALSE(print(back).empty());
    ASSERT_FALSE(encode_program(back).empty());
  }
  EXPECT_GT(accepted, 100u);  // otherwise all damage would be in the header
}

Status decode_changed(void (*change)(fbs::ProgramT&)) {
  Graph graph;
  graph.nodes.push_back({find_op("aten::relu"), std::vector<Arg>(1), std::vector<Arg>(1), 0});
  const std::vector<uint8_t> bytes = encode_program(graph);
  fbs::ProgramT program;
  fbs::GetProgram(bytes.data())->UnPackTo(&program);
  change(program);
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(fbs::Program::Pack(builder, &program), fbs::ProgramIdentifier());
  Graph back;
  return decode_program(builder.GetBufferPointer(), builder.GetSize(), &back);
}

TEST(Program, AnOpWithAnotherSignatureIsNamed) {
  const Status status = decode_changed([](fbs::ProgramT& program) { program.op_hashes.at(0) ^= 1; });
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_NE(status.message().find("'aten::relu', but this side knows it with other"), std::string::npos)
      << status.message();
  // A hash of 0 is not compared.
  EXPECT_TRUE(decode_changed([](fbs::ProgramT& program) { program.op_hashes.at(0) = 0; }).ok());
  EXPECT_TRUE(decode_changed([](fbs::ProgramT& program) { program.op_hashes.clear(); }).ok());
}

TEST(Program, AnUnknownOpIsNamed) {
  const Status status = decode_changed([](fbs::ProgramT& program) { program.ops.at(0) = "aten::of_tomorrow"; });
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_NE(status.message().find("'aten::of_tomorrow', but this side does not know it"), std::string::npos)
      << status.message();
}

TEST(Program, AnotherFormatVersionIsNamed) {
  const Status status = decode_changed([](fbs::ProgramT& program) { program.version = 99; });
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_NE(status.message().find("99"), std::string::npos);
}

TEST(Program, AnOpThatNobodyDescribes) {
  const Status status = decode_changed([](fbs::ProgramT& program) { program.ops[0] = "nobody::knows"; });
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_NE(status.message().find("nobody::knows"), std::string::npos);
}

fbs::ProgramT* described(fbs::ProgramT& program, const char* name, uint32_t flags) {
  program.ops[0] = name;
  auto op = std::make_unique<fbs::OpaqueOpT>();
  op->flags = flags;
  auto arg = std::make_unique<fbs::OpaqueArgT>();
  arg->name = "self";
  op->args.push_back(std::move(arg));
  op->results.emplace_back(-1, 0);
  program.opaque_ops.push_back(std::move(op));
  return &program;
}

TEST(Program, AnOpOutsideTheTableIsRegisteredFromTheProgram) {
  EXPECT_EQ(find_op("test::from_a_program"), kInvalidOpcode);
  const Status status =
      decode_changed([](fbs::ProgramT& program) { described(program, "test::from_a_program", kOpPure); });
  EXPECT_TRUE(status.ok()) << status.message();
  const Opcode opcode = find_op("test::from_a_program");
  ASSERT_NE(opcode, kInvalidOpcode);
  EXPECT_EQ(op_desc(opcode).args[0].name, "self");
  EXPECT_EQ(op_desc(opcode).flags, kOpPure);
}

TEST(Program, AResultThatIsNoArgumentIsRefused) {
  // All negative numbers would mean the same, but the text form has only one of them.
  for (const int alias : {1, 127, 256, -2, -128, -257}) {
    static int changed;
    changed = alias;
    const Status status = decode_changed([](fbs::ProgramT& program) {
      described(program, "test::aliased", 0)->opaque_ops[0]->results[0] = fbs::OpaqueResult(changed, 0);
    });
    EXPECT_EQ(status.code(), ErrorCode::kInvalid) << alias;
  }
}

TEST(Program, AnOpWithTwoSignaturesIsRefused) {
  EXPECT_TRUE(decode_changed([](fbs::ProgramT& program) { described(program, "test::two", 0); }).ok());
  const Status status = decode_changed([](fbs::ProgramT& program) { described(program, "test::two", kOpRandom); });
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_NE(status.message().find("another signature"), std::string::npos);
}

TEST(Program, AnOpOfTheTableCannotBeRedescribed) {
  EXPECT_FALSE(decode_changed([](fbs::ProgramT& program) { described(program, "aten::relu", 0); }).ok());
}

TEST(Program, ListsThatShareItemsAreRefused) {
  // Otherwise a small program could describe a very large graph.
  const Status status =
      decode_changed([](fbs::ProgramT& program) { program.args[0] = fbs::Arg(0, 2, fbs::ArgTag::List); });
  EXPECT_EQ(status.code(), ErrorCode::kInvalid);
}

}  // namespace
}  // namespace torch_remote::ir
