package offload

import (
	"time"

	"github.com/sluice-serving/sluice/connector"
)

// phase says which part of a job a report is about.
type phase uint8

const (
	copied phase = iota // between device and host
	filed               // to files; only of saved turns
)

// Report is the payload of a worker's events.
type Report struct {
	Job    uint64
	Tokens int   // of a load
	Blocks int   // copied successfully
	Bytes  int64 // of them
	Took   time.Duration

	phase     phase
	willFile  bool  // a report of filed follows
	fileAdded []Key // now in files
	fileGone  []Key // no longer in files
}

// Completed acts on the ends of jobs. Anything else is not this connector's.
func (s *Scheduler) Completed(ev connector.Event) {
	rep, ok := ev.Payload.(Report)
	if !ok {
		return
	}
	for _, k := range rep.fileGone {
		delete(s.files, k)
	}
	for _, k := range rep.fileAdded {
		s.files[k] = struct{}{}
	}
	if ev.Kind != connector.Saved && ev.Kind != connector.Received {
		return
	}
	j := s.jobs[rep.Job]
	if j == nil || (ev.Kind == connector.Received) != (j.kind == jobLoad) || j.request != ev.Request {
		s.stats.Unknown++
		return
	}
	seen := &j.seen
	if rep.phase == filed {
		seen = &j.filed
	}
	bit := uint64(1) << (uint(ev.Worker) % 64)
	if ev.Worker < 0 || ev.Worker >= s.cfg.Workers || *seen&bit != 0 {
		s.stats.Duplicate++
		return
	}
	*seen |= bit
	j.failed = j.failed || ev.Err != nil
	j.willFile = j.willFile || rep.willFile
	all := uint64(1)<<s.cfg.Workers - 1
	if rep.phase == copied && j.seen == all {
		s.copyEnded(j)
		s.measure(j, rep)
	}
	if j.seen == all && (!j.willFile || j.filed == all) {
		s.endJob(rep.Job, j)
	}
}

// measure times loads for Restorable.
func (s *Scheduler) measure(j *job, rep Report) {
	if j.kind != jobLoad || j.failed || j.tokens == 0 || rep.Took <= 0 {
		return
	}
	x := rep.Took.Seconds() / float64(j.tokens)
	if s.speed == 0 {
		s.speed = x
	}
	s.speed += (x - s.speed) / 5
}

// copyEnded makes saved content matchable, and a record ready or gone.
func (s *Scheduler) copyEnded(j *job) {
	if j.failed {
		s.stats.Failed++
	} else {
		for i, x := range j.publish {
			if s.pool.publish(x) && len(j.told) > 0 {
				t := &j.told[i]
				s.pool.slots[x].name = t.hash
				s.journal.recordStored(t, s.cfg.Groups[t.group], s.cfg.BlockSize)
			}
		}
	}
	rec := s.records[j.request]
	switch {
	case rec == nil || j.kind == jobTurn:
	case j.kind == jobSave && rec.state == saving:
		rec.state = ready
		if j.failed || rec.over {
			s.dropRecord(j.request, rec)
		}
	case j.kind == jobLoad && rec.state == restoring:
		if !j.failed {
			s.stats.Restores++
		}
		delete(s.records, j.request) // the job drops the slots
	}
}

// endJob takes the job's use of its slots away.
func (s *Scheduler) endJob(id uint64, j *job) {
	delete(s.jobs, id)
	for _, x := range j.slots {
		s.pool.drop(x)
	}
}
