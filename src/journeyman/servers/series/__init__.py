"""Figures over time: what queues, tasks, rules and timetables did, minute by minute.

lengths.py     waits and run times as small histograms that can be added up
cells.py       one cell: what happened to one thing in a minute or an hour
counting.py    what records of the work queue and lines of runs do to cells
files.py       cells on disk: minutes for two days, hours for 90 days
follower.py    reads log and runs, fills cells, closes minutes and hours, keeps its place
figures.py     the figures that a cell stands for
answers.py     cells of a range of time as the figures that were asked for
child.py       the functions of the helper process that does all this
"""
