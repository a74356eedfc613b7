#pragma once

// Written by codegen/loop/tools/fit.py. The comment above a table is the relative error of its polynomial
// (fit.py has the exceptions). Suffixes: 32 for f32, 64 for f64, Mid for f32 functions computed in f64.
namespace torch_remote::codegen::tables {

// clang-format off
// 2^-28.1
inline constexpr double kExp32[] = {0x1.fffffc0000000p-2, 0x1.5554940000000p-3, 0x1.55588a0000000p-5, 0x1.12389c0000000p-7, 0x1.6a784c0000000p-10};
// 2^-57.7
inline constexpr double kExp64[] = {0x1.000000000000ap-1, 0x1.555555555550ep-3, 0x1.55555555507f6p-5, 0x1.11111111248b3p-7, 0x1.6c16c184253e8p-10, 0x1.a01a01366788cp-13, 0x1.a0199a3be075dp-16, 0x1.71df1192e2417p-19, 0x1.28ad3a7c363a0p-22, 0x1.ad972be8925ecp-26};
// 2^-34.1
inline constexpr double kExpMid[] = {0x1.0000003a22d3ep-1, 0x1.555554525fb03p-3, 0x1.55548d877b1cap-5, 0x1.11125da009e69p-7, 0x1.6d8d4c310a8acp-10, 0x1.9f1edf3f8e12fp-13};
// 2^-28.1
inline constexpr double kExp2_32[] = {0x1.62e4300000000p-1, 0x1.ebfbd80000000p-3, 0x1.c6af8e0000000p-5, 0x1.3b30320000000p-7, 0x1.5efe5c0000000p-10, 0x1.4016520000000p-13};
// 2^-57.7
inline constexpr double kExp2_64[] = {0x1.62e42fefa39efp-1, 0x1.ebfbdff82c59cp-3, 0x1.c6b08d704a0d4p-5, 0x1.3b2ab6fba11e6p-7, 0x1.5d87fe78b3b5cp-10, 0x1.4309130c05de2p-13, 0x1.ffcbfbf8d04a0p-17, 0x1.62bfcdcf5a030p-20, 0x1.b5260d8b184adp-24, 0x1.e611beb52506ep-28, 0x1.e80f1fd30faccp-32};
// 2^-34.1
inline constexpr double kExp2Mid[] = {0x1.62e42ff0e34c1p-1, 0x1.ebfbe07540d53p-3, 0x1.c6b08ae9ef0e2p-5, 0x1.3b29f4a81806ap-7, 0x1.5d8a55c12cef9p-10, 0x1.445c1317e0bacp-13, 0x1.fe1cd2dbc6286p-17};
// 2^-30.9
inline constexpr double kExpm1_32[] = {0x1.0000000000000p-1, 0x1.5555540000000p-3, 0x1.5554fa0000000p-5, 0x1.1112c00000000p-7, 0x1.6d38880000000p-10, 0x1.9ea3c60000000p-13};
// 2^-25.9
inline constexpr double kExpm1Short32[] = {0x1.fffffe0000000p-2, 0x1.5554b80000000p-3, 0x1.5556aa0000000p-5, 0x1.1223380000000p-7, 0x1.6be6ae0000000p-10};
// 2^-61.1
inline constexpr double kExpm1_64[] = {0x1.0000000000000p-1, 0x1.5555555555559p-3, 0x1.5555555555559p-5, 0x1.111111110f70bp-7, 0x1.6c16c16c16a81p-10, 0x1.a01a01af97ba4p-13, 0x1.a01a019d1d083p-16, 0x1.71ddf94bf40c6p-19, 0x1.27e4fc5b8708ep-22, 0x1.af5cddf2508fdp-26, 0x1.1f31ffcaea910p-29};
// 2^-31.6
inline constexpr double kSinh32[] = {0x1.5555560000000p-3, 0x1.1110e00000000p-7, 0x1.a022b60000000p-13, 0x1.756df40000000p-19};
// 2^-61.8
inline constexpr double kSinh64[] = {0x1.5555555555556p-3, 0x1.111111111101ep-7, 0x1.a01a01a037262p-13, 0x1.71de3a3b0796ep-19, 0x1.ae646ff3e8c7cp-26, 0x1.6116f54249b0ap-33, 0x1.b5c856eaa97b2p-41};
// 2^-29.7
inline constexpr double kTanh32[] = {-0x1.55554a0000000p-2, 0x1.110cee0000000p-3, -0x1.b91e7e0000000p-5, 0x1.58e5180000000p-6, -0x1.99219e0000000p-8};
// 2^-64.9
inline constexpr double kTanh64[] = {-0x1.5555555555555p-2, 0x1.1111111111080p-3, -0x1.ba1ba1ba10e22p-5, 0x1.664f487f8e56ep-6, -0x1.226e34cf6f36bp-7, 0x1.d6d3b101a875bp-9, -0x1.7da103c0fc26dp-10, 0x1.353901b6b7fd3p-11, -0x1.f349c4ac508a8p-13, 0x1.88d795431fca2p-14, -0x1.1132310d2ab98p-15, 0x1.e4b47a6259e6ep-18};
// 2^-29.9
inline constexpr double kLog32[] = {0x1.5555480000000p-2, -0x1.00000a0000000p-2, 0x1.99a4680000000p-3, -0x1.555a660000000p-3, 0x1.233c360000000p-3, -0x1.fc6f9e0000000p-4, 0x1.e6f7d60000000p-4, -0x1.dc56a80000000p-4, 0x1.11e64e0000000p-4};
// 2^-59.5
inline constexpr double kLog64[] = {0x1.5555555555592p-1, 0x1.999999997ff50p-2, 0x1.24924941dd074p-2, 0x1.c71c52183f1a0p-3, 0x1.74663c1805297p-3, 0x1.39a1fe1f69385p-3, 0x1.2f02ea32a1666p-3};
// 2^-37.6
inline constexpr double kLogMid[] = {0x1.555554fddf5f1p-1, 0x1.999a7a217a4d6p-2, 0x1.2438ef37114b4p-2, 0x1.e2f33105ce0b5p-3};
// 2^-77.0
inline constexpr double kLogLong[] = {0x1.999999999999ap-2, 0x1.2492492492363p-2, 0x1.c71c71c747ea3p-3, 0x1.745d172bc8ad3p-3, 0x1.3b13ba5a87920p-3, 0x1.110f1c3ce5609p-3, 0x1.e2657c7890e7ap-4, 0x1.a5091c01d88b5p-4, 0x1.eca0315cea30bp-4};
// 2^-27.8
inline constexpr double kSin32[] = {-0x1.5555440000000p-3, 0x1.1106c60000000p-7, -0x1.991c1a0000000p-13};
// 2^-32.7
inline constexpr double kCos32[] = {0x1.55554a0000000p-5, -0x1.6c0c120000000p-10, 0x1.99dd740000000p-16};
// 2^-57.7
inline constexpr double kSin64[] = {-0x1.5555555555547p-3, 0x1.111111110f55cp-7, -0x1.a01a019ba9346p-13, 0x1.71de351a6897dp-19, -0x1.ae5e1b845fae7p-26, 0x1.5d7cf5011eda6p-33};
// 2^-63.7
inline constexpr double kCos64[] = {0x1.5555555555549p-5, -0x1.6c16c16c14bcfp-10, 0x1.a01a019c24ed0p-16, -0x1.27e4f7a4ec548p-22, 0x1.1ee9a7a72f520p-29, -0x1.8f8b731ea6763p-37};
// 2^-37.3
inline constexpr double kSinMid[] = {-0x1.5555554ba038bp-3, 0x1.111107d35d141p-7, -0x1.a00f066c7d644p-13, 0x1.6cb5594ff9499p-19};
// 2^-42.7
inline constexpr double kCosMid[] = {0x1.5555554e3ed0ap-5, -0x1.6c16b786c7d18p-10, 0x1.a01074e3e3b4fp-16, -0x1.24090be06abb1p-22};
// 2^-27.6
inline constexpr double kAsin32[] = {0x1.5555c80000000p-3, 0x1.3301fc0000000p-4, 0x1.747d060000000p-5, 0x1.8c2d840000000p-6, 0x1.596d620000000p-5};
// 2^-55.9
inline constexpr double kAsin64[] = {0x1.555555555538ep-3, 0x1.333333336ec38p-4, 0x1.6db6db424bfb5p-5, 0x1.f1c72c48c6ee5p-6, 0x1.6e89f2b3c75c7p-6, 0x1.1c6bf9e6a6587p-6, 0x1.c6fbd2985eed3p-7, 0x1.8ed00f2ed57bap-7, 0x1.ab5b47ff3edaap-8, 0x1.404602baddd66p-6, -0x1.0a55ac5a4a5a1p-6, 0x1.059b16e6444f6p-5};
// 2^-27.4
inline constexpr double kAtan32[] = {-0x1.55553e0000000p-2, 0x1.9991e40000000p-3, -0x1.2420840000000p-3, 0x1.c08c260000000p-4, -0x1.58084a0000000p-4, 0x1.da25c00000000p-5, -0x1.fd72200000000p-6, 0x1.6413f40000000p-7, -0x1.d333fe0000000p-10};
// 2^-57.0
inline constexpr double kAtan64[] = {-0x1.5555555555526p-2, 0x1.99999999955b0p-3, -0x1.249249237f46dp-3, 0x1.c71c717fcbc28p-4, -0x1.745d11ae3b208p-4, 0x1.3b136697f070ep-4, -0x1.110e51180894cp-4, 0x1.e1bba5ddbcddbp-5, -0x1.ae5e70d6d9aedp-5, 0x1.82dad2d4650b6p-5, -0x1.59a3f6a83d4c5p-5, 0x1.2c2e52d2e8685p-5, -0x1.e9fa02d4e6ab9p-6, 0x1.683cd32b15d60p-6, -0x1.c7900643d0739p-7, 0x1.d7b9a9a6ef939p-8, -0x1.7a3a4e3bf14a3p-9, 0x1.b3fc03526ab3dp-11, -0x1.3f378896a930bp-13, 0x1.bbefda5b0494ap-17};
// 2^-26.8
inline constexpr double kErf32[] = {0x1.06ebaa0000000p-3, 0x1.45f2e80000000p-1, 0x1.a500c40000000p-4, -0x1.3a3e100000000p-6, -0x1.b61df80000000p-14, 0x1.a4fbf20000000p-10, -0x1.392fc20000000p-11, 0x1.c255400000000p-14, -0x1.0fdfae0000000p-17};
// 2^-56.8
inline constexpr double kErf64[] = {0x1.06eba8214db69p-3, -0x1.812746b037a21p-2, 0x1.ce2f21a045aeap-4, -0x1.b82ce3137f2c4p-6, 0x1.565bcd38ddb96p-8, -0x1.c02dbcc208496p-11, 0x1.f9a450eaa0b19p-14, -0x1.f4ecf53d7c163p-17, 0x1.bb87822657851p-20, -0x1.70fb72ea0578fp-23, 0x1.7de7a2c1a2ce7p-26, -0x1.7fcd36bcb9050p-28, 0x1.b2f6a50985facp-30, -0x1.fb7a1f118eca6p-33};
// 2^-54.7
inline constexpr double kErfc64[] = {0x1.18932bf08e154p-2, 0x1.07f35cacfb496p-56, 0x1.f3fe31ecb49bfp-3, 0x1.8be202d26c706p-3, 0x1.14eacb1ad036ap-3, 0x1.52cac237100cep-4, 0x1.645fd8a4b9f53p-5, 0x1.38dbd2c8e8afdp-6, 0x1.b00c052d789cep-8, 0x1.908f471bd0101p-10, 0x1.269b4f032907fp-14, -0x1.dd283f5d6efb9p-14, -0x1.72cd83fb232dep-15, -0x1.e7fc2dcf2640fp-21, 0x1.3c6afb56faa26p-18, 0x1.3b2fd8c0fa811p-20, -0x1.7dd20881abc99p-22, -0x1.c923a22de89c6p-23, 0x1.3cc9251212217p-26, 0x1.1b31d1140a7efp-25, -0x1.a36a558cf44fap-33, -0x1.769a670a7c482p-28, 0x1.4c54d7205c3ffp-32, 0x1.bc438ce22a5e7p-31, -0x1.ceda80a646bafp-33};
// 2^-35.0
inline constexpr double kErfcMid[] = {0x1.6e9827d253b27p-2, 0x1.2d882f68a2c72p-2, 0x1.92ede18906484p-3, 0x1.a7e42ba659aa4p-4, 0x1.4664038e5b903p-5, 0x1.2506a98f28cefp-7, -0x1.a7faf3b16c035p-12, -0x1.0929d5065247dp-10, -0x1.7da6c3f7b1e9fp-13, 0x1.8464f5268a94bp-14, 0x1.1efa300b71a7fp-15, -0x1.5a729c49c5078p-17, -0x1.0ce6c8a597b69p-18, 0x1.61b7fee2f10bap-20};
// 2^-55.9
inline constexpr double kLgamma1_64[] = {-0x1.2788cfc6fb619p-1, 0x1.a51a6625307d3p-1, -0x1.9a4d55beab2b1p-2, 0x1.151322ac7dc44p-2, -0x1.a8b9c17aa7428p-3, 0x1.5b40cb0f88812p-3, -0x1.2703a1dd41b57p-3, 0x1.010b36e300466p-3, -0x1.c8066ffd076e8p-4, 0x1.9a01ce9e9e203p-4, -0x1.748c4c4148d31p-4, 0x1.556d5e3aff118p-4, -0x1.3b1a5838ee2f1p-4, 0x1.2464963fe045ap-4, -0x1.11580c5659681p-4, 0x1.0298ae7c73b0ep-4, -0x1.da40e0ec88554p-5, 0x1.9923ff015b4f8p-5, -0x1.f85328ca57bc7p-5, 0x1.53ed0f3fdd059p-4, 0x1.361b00def72e7p-7, -0x1.3c92b4ad54457p-4, -0x1.1b7272e74d07dp-2, 0x1.32f781656098fp-2, 0x1.0752fc70ea046p-1, -0x1.71fb4a32410cdp-3, -0x1.4339d50d7e329p-1};
// 2^-55.5
inline constexpr double kLgamma2_64[] = {0x1.b0ee6072093cep-2, 0x1.4a34cc4a60fa6p-2, -0x1.13e001a557538p-4, 0x1.51322ac7d89e3p-6, -0x1.e404fc21dc71fp-8, 0x1.7add6eacd35dcp-9, -0x1.38ac5bffbb169p-10, 0x1.0b36b007bc9eep-11, -0x1.d3fd65df095c2p-13, 0x1.a127640680d97p-14, -0x1.78da469fb6c33p-15, 0x1.581adc34bfbeep-16, -0x1.3d1e696c5b1b4p-17, 0x1.2447ab54da05dp-18, -0x1.0c782731f4819p-19, 0x1.14378e53813f8p-20, -0x1.15a1a57d8018fp-21, 0x1.018f7e327d03cp-24, -0x1.1210211f2fc09p-24, 0x1.8a46153d21243p-23};
// 2^-32.6
inline constexpr double kLgamma1_Mid[] = {-0x1.2788cfc6fbfbap-1, 0x1.a51a6622fc596p-1, -0x1.9a4d5652966aap-2, 0x1.15132be0c80e3p-2, -0x1.a8b95fe48f3edp-3, 0x1.5b3b49a8d3fb9p-3, -0x1.270df887b60bfp-3, 0x1.01aac7688c0fbp-3, -0x1.c6f2fc5478844p-4, 0x1.88413fbbfa1b9p-4, -0x1.7d771ae3925afp-4, 0x1.dc7f78c0d91e0p-4, -0x1.072ae9294739ep-4, -0x1.ea13d90012ba8p-5, -0x1.cc1edbc93f4ecp-4, 0x1.29c7244a90975p-2};
// 2^-34.9
inline constexpr double kLgamma2_Mid[] = {0x1.b0ee607200f20p-2, 0x1.4a34cc484dd4cp-2, -0x1.13e0018f99089p-4, 0x1.5132360b3b42fp-6, -0x1.e4051839afdb5p-8, 0x1.7ad521ac36cc0p-9, -0x1.38acf85b87a14p-10, 0x1.0c739dde480f5p-11, -0x1.d227681d04eb8p-13, 0x1.7730107831084p-14, -0x1.a709b564298a7p-15, 0x1.37f9017cf7aadp-15};
// 2^-54.6
inline constexpr double kStirling[] = {0x1.5555555555553p-4, -0x1.6c16c16bbad7ep-9, 0x1.a019fd529c009p-11, -0x1.380ed0c4c8736p-11, 0x1.b6ff73e34fff5p-11, -0x1.b17743b361f5bp-10};
// 2^-54.7
inline constexpr double kSinPi[] = {0x1.921fb54442d18p+1, -0x1.4abbce625be15p+2, 0x1.466bc67758481p+1, -0x1.32d2cce503955p-1, 0x1.507833fa17b94p-4, -0x1.e3070585373b6p-8, 0x1.e8de6d73134afp-12, -0x1.6c4ee2d432dcfp-16, 0x1.394bcdf2fbc18p-21};
// Bits 23 to 191 of 1 / (2 pi).
inline constexpr double kInvTwoPi32[] = {0x1.b727220000000p-25, 0x1.529fc26000000p-54, 0x1.57d1f53000000p-82, 0x1.377036c000000p-112, 0x1.8a5664f10e410p-140};
// 50 bits each of 1 / (2 pi), as numbers below 1.
inline constexpr double kInvTwoPi64[] = {0x1.45f306dc9c880p-3, 0x1.529fc2757d1c0p-4, 0x1.a9a6ee06db148p-1, 0x1.664f10e4107f0p-2, 0x1.28b1d5ef5de28p-1, 0x1.86dc91b8e9090p-2, 0x1.ba5c00c925dc0p-3, 0x1.413a32439fc38p-1, 0x1.eb1cb129a73e0p-2, 0x1.d1046bea5d768p-1, 0x1.213a671c09ac0p-4, 0x1.17df904e64750p-2, 0x1.1cc1a99cfa4e0p-1, 0x1.08bf177bf2500p-1, 0x1.d8ffc4bffef00p-1, 0x1.6603fbcbc4620p-2, 0x1.ad05368fb69b0p-1, 0x1.fb3c9f2c26dd0p-2, 0x1.e8c7ecd3cbfc0p-3, 0x1.45aea4f758fd0p-1, 0x1.f2f8bd9e839c8p-1, 0x1.ef14a525d4d78p-1, 0x1.dafd88fc6ae80p-1, 0x1.0ac06608df8f0p-1};
// clang-format on

}  // namespace torch_remote::codegen::tables
