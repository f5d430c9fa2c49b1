package lexicons

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/lexicon"
	"github.com/weir-social/weir/internal/lexicon/records"
	"github.com/weir-social/weir/internal/lexicon/rules"
	"github.com/weir-social/weir/internal/lexicon/verdict"
	"github.com/weir-social/weir/internal/words"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// Limits on what one record can make a judgment read and store.
const (
	mostRead      = 32      // records that a record's rules may read
	mostReadBytes = 4 << 20 // total size of their JSON
	mostText      = 64 << 10
	mostCached    = 16 << 20 // bytes of targets kept for the next record
)

// judging is the judgment of some records in one transaction.
type judging struct {
	worker   *JudgeRecords
	tx       pgx.Tx
	catalog  *lexicon.Catalog
	records  []*judgedRecord
	targets  map[schema.Key]verdict.Target
	contents map[schema.Key]content
	cached   int // total bytes of contents
}

// content is a record that rules read. Root is set only if the record is valid.
type content struct {
	root  lexicon.Value
	bytes int
}

// judgedRecord is one of the judged records.
type judgedRecord struct {
	rules.Record
	raw      []byte
	rev      string
	before   *verdict.Before
	read     map[schema.Key]string // the records that rules read, and the at-uri of each
	required []schema.Key
	hard     bool // the record breaks a hard rule
	Judgment verdict.Judgment
}

// add validates a record and collects its references.
func (j *judging) add(stored *schema.Record, before *verdict.Before) {
	r := &judgedRecord{raw: stored.Record, rev: stored.Rev, before: before, read: map[schema.Key]string{}}
	r.Record = rules.Record{DID: stored.DID, Collection: stored.Collection, Key: stored.Rkey,
		Result: j.catalog.Validate(stored.Collection, stored.Rkey, stored.Record)}
	r.Judgment = verdict.Judgment{Key: stored.Key, CID: stored.CID, Hash: r.Hash, Verdict: r.Verdict, Problems: r.Problems}
	for _, uri := range j.worker.rules.Required(r.Record) {
		if key, ok := j.target(uri); ok {
			r.required, r.read[key] = append(r.required, key), uri
		}
	}
	for _, uri := range j.worker.rules.Wanted(r.Record) {
		if len(r.read) >= mostRead {
			break
		}
		if key, ok := j.target(uri); ok {
			r.read[key] = uri
		}
	}
	for _, found := range r.References {
		reference := verdict.Reference{Reference: found}
		if did, collection, rkey, ok := found.Record(); ok && len(did) <= maxTargetDID {
			reference.To = schema.Key{Collection: collection, DID: did, Rkey: rkey}
			_, reference.Read = r.read[reference.To]
		}
		r.Judgment.References = append(r.Judgment.References, reference)
	}
	j.records = append(j.records, r)
}

// maxTargetDID keeps index rows below Postgres' size limit.
const maxTargetDID = 256

// target returns the record that an at-uri names, if it is of a judged collection.
func (j *judging) target(uri string) (schema.Key, bool) {
	did, collection, rkey, ok := lexicon.Reference{Kind: lexicon.ATURI, Target: uri}.Record()
	if !ok || len(did) > maxTargetDID || !j.worker.judged(collection) {
		return schema.Key{}, false
	}
	return schema.Key{Collection: collection, DID: did, Rkey: rkey}, true
}

// decide looks for the targets and decides the state of each record.
func (j *judging) decide(ctx context.Context) (err error) {
	var keys []schema.Key
	for _, r := range j.records {
		for key := range j.seenBy(r) {
			keys = append(keys, key)
		}
	}
	if j.targets, err = verdict.Targets(ctx, j.tx, workers.SortedKeys(keys)); err != nil {
		return err
	}
	for _, r := range j.records {
		if err := j.check(ctx, r); err != nil {
			return err
		}
		j.settle(r)
	}
	return nil
}

// seenBy returns the targets that the judgment of a record depends on.
func (j *judging) seenBy(r *judgedRecord) map[schema.Key]verdict.Target {
	seen := map[schema.Key]verdict.Target{}
	for key := range r.read {
		seen[key] = j.targets[key]
	}
	for i := range r.Judgment.References {
		if to := r.Judgment.References[i].To; to != (schema.Key{}) && j.worker.judged(to.Collection) {
			seen[to] = j.targets[to]
		}
	}
	return seen
}

// check checks the rules. They see a target only if it is valid.
func (j *judging) check(ctx context.Context, r *judgedRecord) error {
	r.Targets = map[string]lexicon.Value{}
	left := mostReadBytes
	for _, uri := range j.worker.rules.Wanted(r.Record) { // in order: chance must not decide what the limits cut off
		key, ok := j.target(uri)
		if _, reads := r.read[key]; !ok || !reads || j.targets[key].CID == "" {
			continue
		}
		if _, done := r.Targets[uri]; done {
			continue
		}
		c, err := j.content(ctx, key)
		if err != nil {
			return err
		}
		if left -= c.bytes; left < 0 {
			break
		}
		if c.root.Exists() {
			r.Targets[uri] = c.root
		}
	}
	hard, soft := j.worker.rules.Check(r.Record)
	r.Targets = nil
	if r.Judgment.Warnings = soft; len(hard) > 0 {
		r.Judgment.Problems, r.hard = hard, true
	}
	return nil
}

// content reads and validates a target.
func (j *judging) content(ctx context.Context, key schema.Key) (content, error) {
	if c, ok := j.contents[key]; ok {
		return c, nil
	}
	raw, err := verdict.Content(ctx, j.tx, key)
	if err != nil {
		return content{}, err
	}
	c := content{bytes: len(raw)}
	if result := j.catalog.Validate(key.Collection, key.Rkey, raw); result.Verdict == lexicon.Valid {
		c.root = result.Root
	}
	if j.cached += c.bytes; j.cached > mostCached {
		j.contents, j.cached = map[schema.Key]content{}, c.bytes
	}
	j.contents[key] = c
	return c, nil
}

// settle decides the state of a record. Its own faults take precedence over its targets.
func (j *judging) settle(r *judgedRecord) {
	result := &r.Judgment
	missing := false
	for _, key := range r.required {
		switch {
		case j.dangling(r, key):
			result.Dangling = true
		case j.targets[key].CID == "":
			result.Waits = append(result.Waits, key)
			missing = missing || r.before.Waits[key]
		}
	}
	switch {
	case result.Verdict == lexicon.Invalid || r.hard:
		result.State = verdict.Refused
	case missing:
		result.State = verdict.Missing
	case len(result.Waits) > 0:
		result.State = verdict.Parked
	default:
		result.State = verdict.Projected
	}
	if result.State == verdict.Refused {
		result.Waits = nil
	}
	if result.State != verdict.Projected {
		// This record is not judged again when a target changes, unless it waits for
		// that target.
		result.References, result.Warnings, result.Dangling = nil, nil, false
		return
	}
	for i := range result.References {
		reference := &result.References[i]
		reference.Dangling = reference.To != (schema.Key{}) && j.worker.judged(reference.To.Collection) && j.dangling(r, reference.To)
	}
	called, others := j.worker.rules.Searched(r.Collection, r.Texts)
	names := textOf(called, mostText)
	text := textOf(others, mostText-len(names))
	result.Names, result.Words = words.Of(names, mostText), words.Of(text, mostText)
	result.Filters = records.Filters(r.Root)
	if result.Text = names; names != "" && text != "" {
		result.Text += "\n"
	}
	result.Text += text
}

// dangling reports whether a target was deleted. Tombstones expire, so a target that was
// known to be deleted counts as deleted until it is stored again.
func (j *judging) dangling(r *judgedRecord, key schema.Key) bool {
	target := j.targets[key]
	return target.Gone || target.CID == "" && r.before.Dangling[key]
}

// textOf joins texts, one per line, up to a number of bytes.
func textOf(texts []lexicon.Text, most int) string {
	var b strings.Builder
	for i, t := range texts {
		if i > 0 {
			b.WriteByte('\n')
		}
		left := most - b.Len()
		if len(t.Value) >= left {
			b.WriteString(strings.ToValidUTF8(t.Value[:max(left, 0)], ""))
			break
		}
		b.WriteString(t.Value)
	}
	return b.String()
}

// changed reports whether other records may now see the record differently.
func (r *judgedRecord) changed() bool {
	return r.before.CID != r.Judgment.CID || r.before.Hash != r.Judgment.Hash
}

// differs reports whether the record's state has changed, or whether it was not judged
// before.
func (r *judgedRecord) differs() bool {
	return r.changed() || r.before.State != r.Judgment.State
}

// stage returns the stage at which a record fails, or "" if it does not fail.
func (r *judgedRecord) stage() string {
	switch {
	case r.Judgment.Verdict == lexicon.Invalid:
		return schema.StageLexicon
	case r.hard:
		return schema.StageRules
	case r.Judgment.State == verdict.Missing:
		return schema.StageReference
	}
	return ""
}

// deadLetter returns the dead letter of a record that fails. id is that of the dead
// letter whose retry failed.
func (r *judgedRecord) deadLetter(projection string, id int64) schema.DeadLetter {
	letter := schema.DeadLetter{ID: id, Stage: r.stage(), Projection: projection, Key: r.Judgment.Key, Rev: r.rev, Raw: r.raw}
	if r.Judgment.State == verdict.Missing {
		waits := r.Judgment.Waits[0]
		letter.Cause, letter.Expected, letter.Received = "a record that it requires cannot be had", waits.URI(), "nothing"
		return letter
	}
	p := r.Judgment.Problems[0]
	letter.Cause, letter.Path, letter.Expected, letter.Received = p.Rule, p.Path, p.Expected, p.Received
	return letter
}
