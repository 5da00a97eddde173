#!/bin/sh
# Runs the flights on a standalone cluster of two workers on this machine:
#
#     standalone.sh ARCHIVE WORK [arguments of the flights, such as --weeks 4]
#
# ARCHIVE is what environment.sh has packed. The workers' own Python needs nothing but itself.
# Run it in an environment that has pyspark_ckpt[demo], from the directory of this project.
set -eu
archive=$1
work=$2
shift 2
python=${PYTHON:-$(command -v python3)}
master_port=${MASTER_PORT:-7077}
SPARK_HOME=$("$python" -c 'import pyspark; print(pyspark.__path__[0])')
export SPARK_HOME
mkdir -p "$work"
pids=

stop() {
    for pid in $pids; do kill "$pid" 2>/dev/null || true; done
    wait
}
trap stop EXIT
trap 'exit 1' INT TERM

SPARK_LOCAL_IP=127.0.0.1 "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.master.Master \
    --host 127.0.0.1 --port "$master_port" --webui-port 0 >"$work/master.log" 2>&1 &
pids="$pids $!"
for host in 127.0.0.2 127.0.0.3; do
    SPARK_LOCAL_IP=$host "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker \
        --host $host --cores 1 --memory 1g --webui-port 0 --work-dir "$work/$host" \
        "spark://127.0.0.1:$master_port" >"$work/$host.log" 2>&1 &
    pids="$pids $!"
done

"$python" -m zipfile -c "$work/examples.zip" examples/

# The same as on any cluster. The driver runs here, with this Python.
export PYSPARK_DRIVER_PYTHON="$python" PYSPARK_PYTHON=./environment/bin/python
SPARK_LOCAL_IP=127.0.0.1 "$SPARK_HOME/bin/spark-submit" \
    --master "spark://127.0.0.1:$master_port" \
    --archives "$archive#environment" \
    --py-files "$work/examples.zip" \
    --conf spark.executor.memory=512m \
    --conf spark.ui.enabled=false \
    examples/cluster/flights.py "$@"
