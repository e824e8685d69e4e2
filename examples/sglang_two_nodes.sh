#!/bin/bash
# A prefill server over two nodes and a decode server, bootstrap traffic over gRPC.
#
#   pip install 'bootstrap-grpc[sglang]'      on every node, into SGLang's environment
#   NODE_RANK=0 sglang_two_nodes.sh prefill   on the first prefill node
#   NODE_RANK=1 sglang_two_nodes.sh prefill   on the second one
#   sglang_two_nodes.sh decode                on the decode node
#
# PREFILL_HOST: address of the first prefill node, as all nodes reach it. Ports to open on it:
# 8998 (HTTP, SGLang's bootstrap port), 18998 (gRPC: that port + 10000), 20000 (torch).
# Where 18998 is closed everything works over HTTP, as without the plugin.
set -euo pipefail

PREFILL_HOST=${PREFILL_HOST:?address of the first prefill node}
MODEL=${MODEL:-meta-llama/Llama-3.1-8B-Instruct}
TP=${TP:-16}
BOOTSTRAP_PORT=8998

# SGLANG_PLUGINS, where it is set, lists the plugins to load: ours must be among them.
if [[ -n ${SGLANG_PLUGINS:-} && ",$SGLANG_PLUGINS," != *,bootstrap_grpc,* ]]; then
  export SGLANG_PLUGINS="$SGLANG_PLUGINS,bootstrap_grpc"
fi

case ${1:-} in
  prefill)
    # The bootstrap service runs on the node of rank 0; every rank registers at --dist-init-addr's
    # host. Without --host 0.0.0.0 the other node and the decode nodes would not reach it.
    exec python -m sglang.launch_server --model-path "$MODEL" --tp-size "$TP" \
      --host 0.0.0.0 --port 30000 \
      --nnodes 2 --node-rank "${NODE_RANK:?0 or 1}" --dist-init-addr "$PREFILL_HOST:20000" \
      --disaggregation-mode prefill --disaggregation-bootstrap-port "$BOOTSTRAP_PORT"
    ;;
  decode)
    exec python -m sglang.launch_server --model-path "$MODEL" --tp-size "$TP" \
      --host 0.0.0.0 --port 30001 --disaggregation-mode decode
    ;;
  check)
    # Waits until all ranks are there, then shows them.
    bootstrap-grpc wait-ready --address "$PREFILL_HOST:$((BOOTSTRAP_PORT + 10000))"
    exec bootstrap-grpc status --address "$PREFILL_HOST:$((BOOTSTRAP_PORT + 10000))"
    ;;
  *)
    echo "usage: $0 prefill|decode|check" >&2
    exit 2
    ;;
esac
