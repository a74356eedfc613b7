from torch_remote_cli.main import main

main()
