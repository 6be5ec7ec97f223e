import io

from drafts import CLUSTER

from heterps_compile.console import make_console
from heterps_compile.report.pool_table import cluster_table


def test_a_pool_reads_well(golden):
    stream = io.StringIO()
    make_console(stream, None).print(cluster_table(CLUSTER, 120))
    golden("report/cluster_120.txt", stream.getvalue())
