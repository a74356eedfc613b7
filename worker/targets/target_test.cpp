#include "worker/targets/target.h"

#include <gtest/gtest.h>

namespace torch_remote::worker {
namespace {

Target target(const char* name, bool numbered) {
  Target made;
  made.name = name;
  made.numbered = numbered;
  return made;
}

const std::vector<Target> kTargets = {target("cpu", false), target("gpu", true)};

std::string choose(std::string_view text, ChosenDevices* chosen) {
  return choose_devices(text, kTargets, chosen).message();
}

TEST(Targets, AreChosenByNameAndNumber) {
  ChosenDevices chosen;
  EXPECT_EQ(choose("cpu", &chosen), "");
  EXPECT_EQ(chosen.target, &kTargets[0]);
  EXPECT_EQ(chosen.ids, (std::vector<std::string>{"0"}));
  EXPECT_EQ(choose("gpu", &chosen), "");
  EXPECT_EQ(chosen.target, &kTargets[1]);
  EXPECT_EQ(chosen.ids, (std::vector<std::string>{"0"}));
  EXPECT_EQ(choose("gpu:3,gpu,gpu:12", &chosen), "");
  EXPECT_EQ(chosen.ids, (std::vector<std::string>{"3", "0", "12"}));
}

TEST(Targets, HaveIdsOfTheirOwn) {
  std::vector<Target> targets = kTargets;
  targets[1].is_id = [](std::string_view id) { return id.starts_with("GPU-"); };
  ChosenDevices chosen;
  EXPECT_TRUE(choose_devices("gpu:GPU-12ab,gpu:1", targets, &chosen).ok());
  EXPECT_EQ(chosen.ids, (std::vector<std::string>{"GPU-12ab", "1"}));
  EXPECT_FALSE(choose_devices("cpu:GPU-12ab", targets, &chosen).ok());
  EXPECT_FALSE(choose_devices("gpu:12ab", targets, &chosen).ok());
}

TEST(Targets, ErrorsListWhatThereIs) {
  ChosenDevices chosen;
  for (const char* wrong : {"", "tpu", "cpu:0", "gpu:", "gpu:x", "gpu:-1", "gpu:1x", "gpu:99999999999", "gpu,"}) {
    EXPECT_NE(choose(wrong, &chosen).find("is not a device; there are cpu, gpu:0, gpu:1, ..."), std::string::npos)
        << wrong << ": " << choose(wrong, &chosen);
  }
  EXPECT_NE(choose("cpu,gpu:1", &chosen).find("'gpu:1' is not a device of 'cpu'"), std::string::npos);
  EXPECT_NE(choose("cpu,cpu", &chosen).find("there is one device 'cpu'"), std::string::npos);
}

}  // namespace
}  // namespace torch_remote::worker
