#include "tests/simulator/scenario.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>

#include "tests/simulator/run.h"

namespace torch_remote::simulator {

void simulate(uint64_t seed, bool prints, void (*finish)(const Outcome&, const World&)) {
  spdlog::set_level(spdlog::level::off);
  draw_tls_secrets_from_the_seed();
  Run& run = *(g_run = new Run(seed));
  run.finish = finish;
  run.world.prints = prints;
  run.world.on_failure = [](const std::string& why) { end(why); };
  enter_world(&run.world, run.world.add_process("world"));
  set_network(&run.network);
  make_plan(run);
  run.world.spawn(run.world.add_process("listener"), [&run] { run_listener(run); });
  run.client = run.world.add_process("client");
  run.world.spawn(run.client, [&run, seed] { run_client(run, ~seed); });
  for (uint64_t i = 0; i < run.plan.strangers; ++i) {
    run.world.spawn(run.world.add_process("stranger"), [&run] { run_stranger(run); });
  }
  const Plan& plan = run.plan;
  if (plan.client_dies != kNever) {
    run.world.at(plan.client_dies, [&run] {
      if (run.client_done) return;
      run.network.count(Fault::kClientDies);
      run.world.kill(run.client);
    });
  }
  if (plan.worker_dies != kNever) {
    run.world.at(plan.worker_dies, [&run] {
      if (run.worker == 0 || !run.world.alive(run.worker)) return;
      run.network.count(Fault::kWorkerDies);
      run.world.kill(run.worker);
    });
  }
  if (plan.outage != kNever) {
    run.world.at(plan.outage, [&run] {
      run.network.count(Fault::kOutage);
      run.network.outage(run.plan.outage_ends, run.plan.outage_refuses);
    });
  }
  while (!run.client_done && run.world.alive(run.client)) sleep(kSecond);
  if (run.client_done) {
    require(run.network.open_descriptors(run.client) == 0,
            std::to_string(run.network.open_descriptors(run.client)) + " descriptors of the client's are left open");
  }
  // A session ends with its client, at the latest when its lease ends after it has noticed the loss.
  const Nanoseconds until = std::max(run.world.now(), plan.outage_ends) +
                            static_cast<Nanoseconds>((plan.lease + 5 * plan.heartbeat).count()) * kMillisecond +
                            10 * kSecond;
  while (run.world.now() < until && run.worker != 0 && run.world.alive(run.worker)) sleep(kSecond);
  require(run.worker == 0 || !run.world.alive(run.worker), "a session outlives its client and its lease");
  end({});
}

}  // namespace torch_remote::simulator
