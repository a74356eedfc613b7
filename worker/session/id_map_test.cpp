#include "worker/session/id_map.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace torch_remote::worker {
namespace {

TEST(IdMap, AgreesWithAMap) {
  std::mt19937_64 random(3);
  IdMap<int> map;
  std::map<uint64_t, int> model;
  for (int i = 0; i < 200000; ++i) {
    const uint64_t id = 1 + (random() % 5 == 0 ? random() % 3000 * 0x100000001 : random() % 2000);
    if (random() % 2) {
      map[id] = model[id] = i;
    } else {
      ASSERT_EQ(map.erase(id), model.erase(id) == 1);
    }
    ASSERT_EQ(map.size(), model.size());
    const uint64_t other = 1 + random() % 2000;
    const int* found = map.find(other);
    ASSERT_EQ(found != nullptr, model.contains(other));
    if (found) {
      ASSERT_EQ(*found, model[other]);
    }
  }
  EXPECT_EQ(map.find(0), nullptr);
}

}  // namespace
}  // namespace torch_remote::worker
