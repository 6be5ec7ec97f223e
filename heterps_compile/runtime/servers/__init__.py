"""Parameter servers: embedding tables in shards that workers pull rows from and push gradients to.

How a run uses them, on every rank::

    tables = find_plan_tables(folder, plan)                       trace_lookups.py
    spec = ServerSpec(workers, ranks, tables, optimizer, ...)     spec.py: the same on all ranks

    a server                                                      server.py
        serve_forever(spec, rank)

    a worker, before it makes its engine                          client.py, served_table.py
        client = Client(spec, rank, recorder=recorder)
        serve_tables(stage, client)
        prefetch = RowPrefetch(client, actions, steps)            row_prefetch.py: between the engine and its data
        Engine(RankParts(..., hooks=[client, prefetch]), options)
        client.save(folder)                                       one worker, after a step
        client.close()                                            every worker, at the end
"""
