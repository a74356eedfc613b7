#include "remote/net/worker_url.h"

#include <gtest/gtest.h>

namespace torch_remote::remote {
namespace {

TEST(WorkerUrl, HasASchemeAndAnAddress) {
  WorkerUrl url;
  ASSERT_TRUE(parse_worker_url("unix:///tmp/w.sock", &url).ok());
  EXPECT_EQ(url.path, "/tmp/w.sock");
  EXPECT_FALSE(url.is_network());
  EXPECT_EQ(url.text(), "unix:///tmp/w.sock");
  ASSERT_TRUE(parse_worker_url("tls://[::1]:4500", &url).ok());
  EXPECT_TRUE(url.is_network() && url.is_tls());
  EXPECT_EQ(url.address.host, "::1");
  EXPECT_EQ(url.address.port, 4500);
  EXPECT_EQ(url.text(), "tls://[::1]:4500");
  ASSERT_TRUE(parse_worker_url("tcp://:80", &url).ok());
  EXPECT_EQ(url.text(), "tcp://127.0.0.1:80");
  EXPECT_TRUE(url.is_network() && !url.is_tls());
}

TEST(WorkerUrl, ErrorsShowHowToWriteIt) {
  WorkerUrl url;
  for (const char* text : {"", "local", "http://a:1", "tcp:/a:1", "unix:a"}) {
    EXPECT_FALSE(scheme_of(text).has_value());
    EXPECT_NE(parse_worker_url(text, &url).message().find("write unix://PATH"), std::string::npos) << text;
  }
  for (const char* text : {"tcp://a", "tls://a:x", "tcp://a:1/b", "tcp://::1:80", "tcp://a:99999"}) {
    EXPECT_TRUE(is_network_url(text));
    EXPECT_NE(parse_worker_url(text, &url).message().find("write it like tcp://"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace torch_remote::remote
