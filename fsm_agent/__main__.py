"""`python -m fsm_agent` is `fsm-agent`."""

from fsm_agent.cli.main import main

if __name__ == "__main__":
    main()
