package simnet

// repository is an account's repository as its server keeps it.
type repository struct {
	did  string
	key  key
	tree tree
	data contentID // the root of the tree
	rev  string    // of the last commit; "" before the first

	rotation  int      // number of key rotations
	highS     bool     // for a forgery
	lastWrite *written // nil: no commit had a record
	commits   []object // messages of the commits
}

// written is a commit with records.
type written struct {
	message object
	blocks  []repoBlock
}

// openRepository returns the repository of an account with the records that are older than
// the log.
func (n *Net) openRepository(did string) *repository {
	r := &repository{did: did, key: n.keyOf(did, n.relay.rotations[did]), rotation: n.relay.rotations[did]}
	ix := n.indexNow()
	defer ix.mu.Unlock()
	if p := ix.byDID[did]; p != nil {
		for _, f := range ix.seeds.follows(ix, p) {
			r.tree = r.tree.put(f.collection+"/"+f.rkey, parseCID(f.contentID()))
		}
		if r.tree.root != nil {
			r.rev = tidOf(ix.seeds.before.UnixMicro())
		}
	}
	r.data, _ = r.tree.write()
	return r
}

// commit writes the operations of a commit and returns its message, without number and
// time.
func (r *repository) commit(entries []*Entry) object {
	var records []repoBlock
	ops := make([]any, 0, len(entries))
	for _, e := range entries {
		path := e.Collection + "/" + e.Rkey
		op := object{"path": path, "action": e.Operation, "cid": nil}
		before, known := r.tree.get(path)
		if known {
			op["prev"] = before
		}
		switch {
		case e.Record != nil:
			raw := recordBlock(e.Record)
			id := cidOfBlock(raw)
			records = append(records, repoBlock{id, raw})
			op["cid"], op["action"] = id, "create"
			if known {
				op["action"] = "update"
			}
			r.tree = r.tree.put(path, id)
		case known:
			r.tree = r.tree.remove(path)
		}
		ops = append(ops, op)
	}
	root, nodes := r.tree.write()
	message := object{"repo": r.did, "ops": ops, "blobs": []any{}, "tooBig": false, "rebase": false, "since": nil}
	if r.rev != "" {
		message["since"], message["prevData"] = r.rev, r.data
	}
	r.data = root
	signed := r.signed(entries[0].Rev)
	message["rev"], message["commit"] = r.rev, signed.cid
	blocks := append(append([]repoBlock{signed}, nodes...), records...)
	message["blocks"] = carOf(blocks)
	r.commits = append(r.commits, message)
	if len(records) > 0 {
		r.lastWrite = &written{message, blocks}
	}
	return message
}

// sync returns the message that the repository is at a commit, without number and time.
func (r *repository) sync(rev string) object {
	signed := r.signed(rev)
	return object{"did": r.did, "rev": r.rev, "blocks": carOf([]repoBlock{signed})}
}

// signed returns the block of a commit of the current tree.
func (r *repository) signed(rev string) repoBlock {
	r.rev = rev
	c := object{"did": r.did, "version": 3, "data": r.data, "rev": rev, "prev": nil}
	c["sig"] = r.key.sign(appendCBOR(nil, c), r.highS)
	raw := appendCBOR(nil, c)
	return repoBlock{cidOfBlock(raw), raw}
}
